"""Tests of the checks of the chapter *dropout* on modules that are not in the mutant set."""

from typing import TYPE_CHECKING, Any

import pytest
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Policies
from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.multihead.decorator import build_case_id
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.plugins.registry import load_problem_types
from attnbench.records.outcome_facts import CannotJudge
from attnbench.records.value_facts import Phrase, SlopeOff, phrase

if TYPE_CHECKING:
    from conftest import Conformance

WITH_WEIGHTS: dict[str, Any] = {"dropout": 0.25, "need_weights": True, "mode": "train"}


def case(**changes: Any) -> Case:
    """Return the problem CROSS with some fields changed."""
    return Case.parse(build_case_id(**changes), load_problem_types())


class InSingle(Formula):
    """A module whose softmax is in float32, also for float64 inputs, as in torchscale."""

    def normalise(self, logits: Tensor) -> Tensor:
        """Compute the softmax in float32."""
        return super().normalise(logits.float()).to(logits.dtype)


class InSingleWithWrongBackward(InSingle):
    """The same, but its backward pass divides by p instead of 1 − p."""

    def apply_dropout(self, shares: Tensor) -> Tensor:
        """Apply dropout, with a gradient of the wrong size."""
        weights = super().apply_dropout(shares)
        return replace_gradient(weights, weights * ((1 - self.dropout) / self.dropout))


class WithoutDropout(Formula):
    """A module that ignores dropout."""

    def apply_dropout(self, shares: Tensor) -> Tensor:
        """Return the weights as they are."""
        return shares


class WithoutWeights(Formula):
    """A module that never returns weights."""

    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        """Return None in place of the weights."""
        del weights
        return output, None


@pytest.mark.parametrize("regime", ["flat", "plain", "peaked"])
def test_gradients_are_compared_in_the_declared_precision(conformance: "Conformance", regime: str) -> None:
    """Finite differences of a module that computes in float32 pass if it says so, and a wrong backward still fails."""
    declared = Policies(computes_in="float32")
    wanted = case(dropout=0.25, dtype="float64", mode="train", regime=regime)
    right = ModuleImplementation(InSingle, policies=declared)
    assert conformance.finding(right, wanted, "dropout_gradients").status == "passed"
    assert conformance.finding(ModuleImplementation(InSingle), wanted, "dropout_gradients").status == "failed"
    wrong = ModuleImplementation(InSingleWithWrongBackward, policies=declared)
    finding = conformance.finding(wrong, wanted, "dropout_gradients")
    assert finding.status == "failed"
    assert isinstance(finding.facts[0], SlopeOff)
    assert finding.facts[0].rounded


def test_second_derivatives_are_compared_in_the_declared_precision(conformance: "Conformance") -> None:
    """Second derivatives of a module that computes in float32 equal finite differences within that precision."""
    declared = Policies(computes_in="float32", twice_differentiable=True)
    wanted = case(dtype="float64", mode="train")
    finding = conformance.finding(ModuleImplementation(InSingle, policies=declared), wanted, "second_derivatives")
    assert finding.status == "passed", finding


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (WithoutDropout, phrase("nothing_dropped", draws=64)),
        (WithoutWeights, phrase("no_weights_for_mask")),
    ],
)
def test_masks_are_judged_only_where_something_was_dropped(
    conformance: "Conformance", module: type[Formula], why: Phrase
) -> None:
    """Without a dropped weight the independence of masks is not judged; the check of the dropout rate fails."""
    wanted, implementation = case(**WITH_WEIGHTS), ModuleImplementation(module)
    finding = conformance.finding(implementation, wanted, "dropout_masks_are_independent")
    assert (finding.status, finding.facts) == ("unsupported", (CannotJudge(why=why),))
    assert conformance.finding(implementation, wanted, "dropout_is_told_by_weights").status == "failed"
