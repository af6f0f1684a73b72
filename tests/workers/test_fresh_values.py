"""Tests of the input values that timed calls get."""

import pytest
import torch

from attnbench.devices.cpu import CPU
from attnbench.interface import Inputs
from attnbench.workers.fresh_values import FreshValues

TOKENS = 5


def make_inputs(dtype: torch.dtype = torch.float32) -> Inputs:
    """Make inputs in which query and key are one tensor, with a mask and a cotangent."""
    shared = torch.randn(2, TOKENS, 8).to(dtype)
    value = torch.randn(8, TOKENS, 2).transpose(0, 2).to(dtype)
    return Inputs(
        parameters={"weight": torch.randn(3)},
        tensors={"query": shared, "key": shared, "value": value, "attn_mask": torch.randn(TOKENS, TOKENS)},
        cotangents={"output": torch.randn(2, TOKENS, 8), "weights": torch.randn(2)},
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_new_values_are_the_same_numbers_with_other_signs(dtype: torch.dtype) -> None:
    """Addresses, strides and magnitudes stay; masks, parameters and other cotangents stay as they are."""
    inputs = make_inputs(dtype)
    before = inputs.map_tensors(torch.clone)
    values = FreshValues(inputs, "output", CPU)
    addresses = {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in inputs.tensors.items()}
    drawn = values.draw()
    assert set(drawn) == {"query", "value", "cotangent.output"}
    values.write(drawn, inputs)
    assert {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in inputs.tensors.items()} == addresses
    for name in ("query", "value"):
        assert torch.equal(inputs.tensors[name].abs(), before.tensors[name].abs())
        assert not torch.equal(inputs.tensors[name], before.tensors[name])
    assert inputs.tensors["key"] is inputs.tensors["query"]
    assert torch.equal(inputs.tensors["attn_mask"], before.tensors["attn_mask"])
    assert torch.equal(inputs.cotangents["weights"], before.cotangents["weights"])
    assert torch.equal(inputs.parameters["weight"], before.parameters["weight"])
    made = values.make(drawn)
    assert torch.equal(made["value"], inputs.tensors["value"])
    assert torch.equal(made["cotangent.output"], inputs.cotangents["output"])


def test_the_values_of_the_case_come_back() -> None:
    """``restore`` writes the numbers that the inputs had at first."""
    inputs = make_inputs()
    before = inputs.map_tensors(torch.clone)
    values = FreshValues(inputs, "output", CPU)
    values.write(values.draw(), inputs)
    values.restore(inputs)
    assert all(torch.equal(inputs.tensors[name], before.tensors[name]) for name in inputs.tensors)
    assert torch.equal(inputs.cotangents["output"], before.cotangents["output"])


def test_values_do_not_follow_from_torchs_generator() -> None:
    """Two objects draw different values, whatever torch's seed is, and leave torch's generator as it was."""
    inputs, drawn = make_inputs(), []
    for _ in range(2):
        torch.manual_seed(0)
        state = torch.get_rng_state()
        values = FreshValues(inputs, None, CPU)
        drawn.append(values.make(values.draw())["query"])
        assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(*drawn)


def test_numbers_of_hidden_tokens_stay_within_them() -> None:
    """A token of NaN stays one, and no other token gets NaN."""
    inputs = make_inputs()
    inputs.tensors["value"][:, 3] = torch.nan
    values = FreshValues(inputs, None, CPU)
    values.write(values.draw(), inputs)
    assert inputs.tensors["value"].isnan().any(dim=-1).any(dim=0).tolist() == [False, False, False, True, False]


def test_signs_come_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sign is a bit of the system's generator, so that no state in this process tells the next signs."""
    monkeypatch.setattr("random.SystemRandom.randbytes", lambda _, count: bytes(count))
    values = FreshValues(make_inputs(), "output", CPU)
    assert all((one == -1).all() for signs in values.draw().values() for one in signs)
