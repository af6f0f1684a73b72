"""Tests of whole models: error budgets of outputs and gradients, and what exceeds them."""

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("pip install 'attnbench[transformers]'", allow_module_level=True)

import torch

from attnbench.oracle.error_budget import FACTOR
from attnmodels.checking import CheckedModel
from attnmodels.facts import END_TO_END, Cell, WholeError
from attnmodels.whole import Budget

FILE = Path(__file__).with_name("attention_functions.py")


@pytest.fixture(scope="module")
def gpt2() -> CheckedModel:
    """A checked model of GPT-2."""
    return CheckedModel(f"{FILE}:make_gpt2")


def check(model: CheckedModel, name: str) -> list[Cell]:
    """Return what was found end to end, in float32, bfloat16 and float16."""
    return list(model.check(name if name in ("eager", "sdpa") else f"{FILE}:{name}", END_TO_END))


@pytest.mark.parametrize("name", ["eager", "sdpa", "blockwise"])
def test_right_functions_are_within_the_budget(gpt2: CheckedModel, name: str) -> None:
    """Output and gradients are well within their budgets, and not exact: the smallest share is above 0."""
    cells = check(gpt2, name)
    assert [cell.status for cell in cells] == ["held"] * 3
    assert all(0 < fact.share < 0.8 for cell in cells for fact in cell.facts)


def test_a_wrong_mask_exceeds_the_budget(gpt2: CheckedModel) -> None:
    """The output is wrong in each dtype, also in bfloat16, whose budget is the largest."""
    for cell in check(gpt2, "mask_inverted"):
        assert cell.status == "deviates"
        assert cell.facts[0].tensor == "output"
        assert cell.facts[0].share > 1


def test_a_lost_gradient_is_found_with_its_parameter(gpt2: CheckedModel) -> None:
    """The output is right; the gradient of the layer that computes the values is not."""
    for cell in check(gpt2, "values_detached"):
        output, gradient = cell.facts
        assert cell.status == "deviates"
        assert output.share < 1 < gradient.share
        assert ".attn.c_attn." in gradient.tensor or ".ln_1." in gradient.tensor


def test_experts_are_chosen_by_rounding() -> None:
    """A model with experts has no budget in 16 bits: which expert computes a token may depend on one rounding."""
    model = CheckedModel(f"{FILE}:make_gpt_oss")
    left = {one.situation: one.reason for one in model.left_out}
    assert left["end-to-end-bfloat16"] == left["end-to-end-float16"] == "rounding chooses the experts"
    assert [cell.status for cell in check(model, "eager")] == ["held"]


def test_the_worst_gradient_is_that_with_the_largest_share() -> None:
    """Each tensor is compared with its own budget; NaN exceeds any, and a gradient of 0 exceeds none."""
    exact = {name: torch.tensor([1.0, 2.0], dtype=torch.float64) for name in ("output", "large", "small", "still")}
    budget = Budget(exact, {"output": 1.0, "large": 1.0, "small": 0.01, "still": 0.0})
    found = exact | {"large": exact["large"] + 0.5, "small": exact["small"] + 0.02}
    output, gradient = budget.judge(found)
    assert (output.share, gradient.tensor) == (0.0, "small")
    assert gradient.share == pytest.approx(2.0)
    assert budget.judge(found | {"still": exact["still"] * torch.nan})[1].tensor == "still"
    assert WholeError(tensor="still", error=0.0, allowed=0.0).share == 0.0
    assert budget.judge({"output": exact["output"]}) == (output,)


def test_the_budget_is_a_multiple_of_the_models_own_error(gpt2: CheckedModel) -> None:
    """Eager attention of transformers is the plain formula: its error is the larger of the two that give the budget."""
    (cell, *_) = check(gpt2, "eager")
    assert cell.facts[0].share <= 1 / FACTOR + 1e-9
