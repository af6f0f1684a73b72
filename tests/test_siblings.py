"""Tests of siblings: by the formula, the same problem put otherwise has the answer that its siblings tell."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.multihead import OPERATOR, MultiheadProblem, case_transforms
from attnbench.oracle.inputs import round_inputs

CROSS = MultiheadProblem(
    batch=3, queries=5, keys=7, embed_dim=12, num_heads=3, bias=True, batch_first=True, need_weights=True
)
SELF = replace(CROSS, queries=7, self_attention=True)
COLUMNS = {"add_bias_kv": True, "add_zero_attn": True}
PROBLEMS = [
    CROSS,
    replace(CROSS, batch_first=False, mask="bool3d+pad"),
    replace(CROSS, batch=None, mask="float2d+padfloat"),
    replace(CROSS, kdim=10, vdim=4, mask="float3d", **COLUMNS),
    replace(CROSS, bias=False, mask="causal", add_bias_kv=True),
    replace(SELF, mask="bool2d+pad", average_attn_weights=True),
    replace(SELF, batch_first=False, mask="float3d"),
    replace(SELF, batch=None, mask="causal", is_causal=True),
    replace(CROSS, queries=7, query_is_key=True, vdim=4, mask="padfloat"),
    replace(CROSS, key_is_value=True, kdim=10, vdim=10, mask="floatempty2d+padempty"),
]


def drawn(problem: MultiheadProblem) -> tuple[Case, Inputs]:
    """A case with its inputs, in float64."""
    case = Case(operator="multihead", problem=problem, dtype="float64", mode="inference")
    return case, round_inputs(OPERATOR.inputs(case), torch.float64)


def answer(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """What the formula says, of inputs as large as the case says."""
    problem = case.problem
    lengths = {"query": problem.queries, "key": problem.keys, "value": problem.keys}
    assert {n: inputs.tensors[n].shape[case_transforms.length_axis(case)] for n in lengths} == lengths
    assert inputs.arguments()["query"].dim() == (2 if problem.batch is None else 3)
    return OPERATOR.evaluate(case, inputs)


def close(found: Tensor, expected: Tensor) -> bool:
    """Equal but for rounding in float64."""
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=0, atol=1e-12, equal_nan=True)


def first_axis(case: Case, output: Tensor) -> Tensor:
    """Output with sequences first."""
    return output if case.problem.batch is None or case.problem.batch_first else output.transpose(0, 1)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_selected_sequences_are_what_they_were_in_the_batch(problem: MultiheadProblem) -> None:
    """In any order, and as often as they are named."""
    if problem.batch is None:
        return
    whole, some = drawn(problem), case_transforms.select(*drawn(problem), sequences=[2, 0, 2, 1])
    expected, found = answer(*whole), answer(*some)
    assert some[0].problem.batch == 4
    assert close(first_axis(some[0], found["output"]), first_axis(whole[0], expected["output"])[[2, 0, 2, 1]])
    assert close(found["weights"], expected["weights"][[2, 0, 2, 1]])


@pytest.mark.parametrize("problem", [p for p in PROBLEMS if not p.is_causal], ids=lambda problem: problem.id())
def test_keys_in_another_order_have_the_same_weights_in_that_order(problem: MultiheadProblem) -> None:
    """Tokens that are queries too come in that order as queries."""
    order = [3, 0, 6, 5, 1, 2, 4]
    columns = [*order, *range(7, problem.columns)]
    rows = order if problem.shares_queries else list(range(problem.queries))
    whole, some = drawn(problem), case_transforms.select(*drawn(problem), keys=order)
    expected, found = answer(*whole), answer(*some)
    assert close(found["weights"], expected["weights"][..., rows, :][..., columns])
    assert close(first_axis(some[0], found["output"]), first_axis(whole[0], expected["output"])[..., rows, :])


def test_a_causal_mask_in_another_order_is_called_a_mask_like_any_other() -> None:
    """An implementation that goes by the name of the mask must not take it for causal any more."""
    case, _ = case_transforms.select(*drawn(replace(CROSS, mask="causal+pad")), keys=[1, 0, 2])
    assert case.problem.mask == "bool2d+pad"


def test_under_a_hint_the_mask_of_other_sizes_is_causal() -> None:
    """The hint stays true: what is selected gets the causal mask of its size."""
    case, inputs = case_transforms.select(
        *drawn(replace(CROSS, mask="causal", is_causal=True)), queries=[4, 4, 4], keys=[5, 6]
    )
    assert case.problem.is_causal
    assert inputs.tensors["attn_mask"].tolist() == [[False, True], [False, False], [False, False]]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_padded_keys_change_nothing(problem: MultiheadProblem) -> None:
    """Their weights are zero, and everything else is as it was."""
    whole, more = drawn(problem), case_transforms.pad(*drawn(problem), 2)
    assert more[0].problem.keys == 9
    assert more[0].problem.padding_mask is not None
    expected, found = answer(*whole), answer(*more)
    rows, kept = slice(0, problem.queries), [*range(7), *range(9, problem.columns + 2)]
    assert close(first_axis(more[0], found["output"])[..., rows, :], first_axis(whole[0], expected["output"]))
    assert close(found["weights"][..., rows, kept], expected["weights"])
    assert not found["weights"][..., rows, 7:9].any()


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_a_batch_of_one_without_its_batch(problem: MultiheadProblem) -> None:
    """Every tensor loses its axis of sequences; a mask for each head keeps its heads."""
    if problem.batch is None:
        return
    one = case_transforms.select(*drawn(problem), sequences=[1])
    none = case_transforms.remove_batch(*one)
    assert none[0].problem.batch is None
    expected, found = answer(*one), answer(*none)
    assert close(found["output"], first_axis(one[0], expected["output"])[0])
    assert close(found["weights"], expected["weights"][0])


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_heads_in_another_order_have_their_weights_in_that_order(problem: MultiheadProblem) -> None:
    """The output does not know the order."""
    case, inputs = drawn(problem)
    expected = answer(case, inputs)
    found = answer(case, case_transforms.reorder_heads(case, inputs, [2, 0, 1]))
    weights = expected["weights"] if problem.average_attn_weights else expected["weights"][..., [2, 0, 1], :, :]
    assert close(found["weights"], weights)
    assert close(found["output"], expected["output"])


def test_one_tensor_under_several_names_stays_one() -> None:
    """What an implementation finds out by identity is as true of a sibling; tensors track as before."""
    case, inputs = drawn(SELF)
    inputs.tensors["query"].requires_grad_()
    for _, sibling in (
        case_transforms.select(case, inputs, sequences=[0], keys=[0, 1]),
        case_transforms.pad(case, inputs, 3),
    ):
        tensors = sibling.tensors
        assert tensors["query"] is tensors["key"] is tensors["value"]
        assert tensors["query"].is_leaf
        assert tensors["query"].requires_grad


def test_a_sibling_is_memory_of_its_own() -> None:
    """What is written into selected tensors does not reach the ones that they were selected from."""
    case, inputs = drawn(CROSS)
    before = inputs.tensors["key"].clone()
    _, sibling = case_transforms.select(case, inputs, queries=[0])
    sibling.tensors["key"].zero_()
    assert inputs.tensors["key"].equal(before)
