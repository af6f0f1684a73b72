"""Tests of the bugs of public trackers that were made again: each is wrong under its condition, and right beside it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.interface import Implementation
from research.field_bugs import __main__ as study
from research.field_bugs.catalogue import FAULTS
from research.field_bugs.faults import SHOWN, Fault, compare
from research.field_bugs.scripts import make_tokens
from research.field_bugs.variants import VARIANTS

# Cases of the variants: arguments of the constructor, masks, and whether weights are returned.
CASES: list[dict[str, Any]] = [
    {"masks": ""}, {"masks": "bool"}, {"masks": "heads"}, {"masks": "float"}, {"masks": "pad"}, {"masks": "tail"},
    {"masks": "bool+tail"}, {"masks": "float+pad"}, {"masks": "pad", "kdim": 10, "vdim": 14},
    {"masks": "bool+pad", "add_bias_kv": True, "add_zero_attn": True}, {"masks": "pad", "batch_first": False},
]  # fmt: skip
BATCH, QUERIES, KEYS, WIDTH, HEADS = 3, 5, 7, 16, 2
# Largest error of a variant in float64, relative to the largest element or 1.
EXACT = 1e-12


@pytest.mark.extended
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_shows_under_its_condition_and_not_beside_it(fault: Fault) -> None:
    """The module differs from the correct formula under the condition, and nowhere else that is tried."""
    assert fault.measure(fault.under) > SHOWN
    for number, beside in enumerate(fault.beside):
        assert fault.measure(beside) <= SHOWN, number


def test_each_fault_says_what_it_is() -> None:
    """A bug has the address of its report; a mutant may have none if its mechanism is inferred."""
    for fault in FAULTS.values():
        assert fault.mechanism, fault.name
        assert fault.condition, fault.name
        assert fault.beside, fault.name
        assert set(fault.kinds) <= set(range(1, 9)), fault.name
        assert fault.source.startswith("https://") or (fault.origin == "mutant" and fault.inferred), fault.name
    assert {fault.origin for fault in FAULTS.values()} == {"bug", "mutant"}


def make_masks(names: str) -> dict[str, Tensor]:
    """Make the masks of a case; ``tail`` is padding in every sequence, ``pad`` in all but the first."""
    generator = torch.Generator().manual_seed(7)
    masks: dict[str, Tensor] = {}
    for name in filter(None, names.split("+")):
        if name in ("pad", "tail"):
            lengths = torch.tensor([KEYS if name == "pad" else KEYS - 1, 4, 2])
            masks["key_padding_mask"] = torch.arange(KEYS) >= lengths[:, None]
        else:
            shape = (BATCH * HEADS, QUERIES, KEYS) if name == "heads" else (QUERIES, KEYS)
            drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
            hide = (drawn > 0.3) & (torch.arange(KEYS) > 1)
            masks["attn_mask"] = drawn if name == "float" else hide
    return masks


def call(module: Any, case: dict[str, Any], *, need_weights: bool, grad: bool) -> dict[str, Tensor]:
    """Return outputs, and gradients of the tokens and the parameters."""
    sizes = {
        "query": (QUERIES, WIDTH),
        "key": (KEYS, case.get("kdim", WIDTH)),
        "value": (KEYS, case.get("vdim", WIDTH)),
    }
    tokens = {
        name: make_tokens(BATCH, *size, seed=seed, dtype=torch.float64, grad=grad)
        for seed, (name, size) in enumerate(sizes.items())
    }
    given = tokens if case.get("batch_first", True) else {name: x.transpose(0, 1) for name, x in tokens.items()}
    with torch.set_grad_enabled(grad):
        output, weights = module(**given, need_weights=need_weights, **make_masks(case["masks"]))
    found = {"output": output} | ({"weights": weights} if need_weights else {})
    if grad:
        loss = sum((x * make_tokens(*x.shape, seed=9, dtype=torch.float64)).sum() for x in found.values())
        leaves = tokens | dict(module.named_parameters())
        found |= dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    return found


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("variant", VARIANTS, ids=[variant.name for variant in VARIANTS])
def test_a_variant_agrees_with_the_reference(variant: Implementation) -> None:
    """Outputs and gradients are those of torch.nn.MultiheadAttention, with and without weights and gradients."""
    for case in CASES:
        torch.manual_seed(0)
        arguments = {name: value for name, value in case.items() if name != "masks"}
        reference = nn.MultiheadAttention(WIDTH, HEADS, dtype=torch.float64, **({"batch_first": True} | arguments))
        for parameter in reference.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
        module = variant.build(reference)
        for need_weights in (False, True):
            for grad in (False, True):
                named = {"need_weights": need_weights, "grad": grad}
                found, right = call(module, case, **named), call(reference, case, **named)
                assert compare(found, right) < EXACT, (case, named)


def test_a_missing_tensor_or_a_nan_is_an_infinite_difference() -> None:
    """NaN agrees with NaN; other shapes, dtypes and places of NaN do not agree."""
    one, nan = torch.ones(2), torch.tensor([1.0, math.nan])
    assert compare({"x": nan}, {"x": nan}) == 0
    assert compare({"x": one + 0.5}, {"x": one}) == 0.5
    for wrong in ({}, {"x": nan}, {"x": one[:1]}, {"x": one.double()}):
        assert compare(wrong, {"x": one}) == math.inf


def test_the_table_counts_what_is_caught_of_each_kind() -> None:
    """Bugs and mutants are counted by their first kind; a variant on which a check fails is named with the check."""
    records = [
        {"name": "dummy_mask_one_key", "failed": {"forward_parity": 2}, "cases": 9, "seconds": 1.0},
        {"name": "float_padding_beside_mask", "failed": {}, "cases": 9, "seconds": 1.0},
        {"name": "slices_rounded_down", "failed": {}, "cases": 9, "seconds": 1.0},
        {"name": "batch_loop", "failed": {"exact_uniform_mean": 1}, "cases": 9, "seconds": 1.0},
        {"name": "checkpointed", "failed": {}, "cases": 9, "seconds": 1.0},
    ]
    assert study.format_table(records).splitlines() == [
        "| kind | bugs caught | mutants caught |",
        "|---|---|---|",
        "| 1 | 1 of 1 | 0 of 1 |",
        "| 2 | 0 of 1 |  |",
        "| all | 1 of 2 | 0 of 1 |",
        "",
        "missed: float_padding_beside_mask, slices_rounded_down",
        "accused: batch_loop by exact_uniform_mean of 2 correct variants",
    ]


@pytest.mark.extended
def test_stored_results_are_continued_only_with_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second command does not run an implementation again. Without --resume it fails."""
    arguments = ["--data", str(tmp_path), "--suite", "quick", "--shard", "1/30", "--only", "transforms_raise"]
    assert study.main(arguments) == 0
    assert "transforms_raise (mutant of kind 4" in capsys.readouterr().out
    assert study.main([*arguments, "--resume"]) == 0
    assert len((tmp_path / "quick-1of30.jsonl").read_text().splitlines()) == 2
    assert study.main(arguments) == 1
    assert "add --resume to continue it" in capsys.readouterr().err
