"""Tests of the memory of causes: what explained a failure is tried first on the next one, and ends the search."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.checks.evaluation import causes as module
from attnbench.checks.evaluation.causes import Causes
from attnbench.checks.observations import Match
from attnbench.interface import FaultModel, Policies
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.suites import CROSS
from attnbench.oracle.expected import CaseOracle
from attnbench.records.value_facts import LooksLike, PolicyDeviation


class CountingOracle(CaseOracle):
    """An oracle that counts the fault models that were evaluated."""

    evaluated = 0

    def evaluate_fault_model(self, model: FaultModel, *arguments: Any, **how: Any) -> dict[str, Tensor]:
        """Evaluate a fault model, and count it."""
        self.evaluated += 1
        return super().evaluate_fault_model(model, *arguments, **how)


def build_oracle(seed: int, **changes: Any) -> CountingOracle:
    """Return the oracle of a case with a mask and this seed."""
    case = Case(operator="multihead", problem=CROSS, dtype="float32", mode="inference").with_problem(
        seed=seed, **{"mask": "bool2d", **changes}
    )
    return CountingOracle(case, OPERATOR, "float32", lambda: OPERATOR.inputs(case))


def find(causes: Causes, oracle: CountingOracle, value: Tensor) -> object:
    """Return the cause of an output, and reset the count of evaluated fault models before."""
    oracle.evaluated = 0
    return causes.find(Match(quantities={"output": value.float()}), oracle.expected, oracle, Policies())


def apply_fault(oracle: CountingOracle, name: str) -> Tensor:
    """Return the output that a fault model gives."""
    (model,) = (one for one in OPERATOR.fault_models(oracle.case, {"output"}) if one.name == name)
    return oracle.evaluate_fault_model(model, oracle.case)["output"]


def test_a_known_mistake_is_tried_first_and_ends_the_search() -> None:
    """The second failure by the same mistake takes one evaluation of a fault model, and names the same mistake."""
    causes, first, second = Causes(), build_oracle(0), build_oracle(1)
    found = find(causes, first, apply_fault(first, "scale_missing"))
    assert isinstance(found, LooksLike)
    assert first.evaluated > 10
    again = find(causes, second, apply_fault(second, "scale_missing"))
    assert again == found
    assert second.evaluated <= 2


def test_another_mistake_is_searched_for_and_both_are_known() -> None:
    """A mistake that the known one does not explain is found by a search; afterwards both are tried first."""
    causes = Causes()
    for name in ("scale_missing", "softmax_over_heads", "scale_missing"):
        oracle = build_oracle(0)
        found = find(causes, oracle, apply_fault(oracle, name))
        assert isinstance(found, LooksLike)
        assert name in {fault.model.key for fault in found.faults}
    assert oracle.evaluated <= 4


def test_known_policies_are_tried_first() -> None:
    """Policies under which a failure was right are found again, without a search among the mistakes."""
    causes = Causes()
    for seed in range(2):
        oracle = build_oracle(seed, mask="empty2d")
        other = oracle.choose(Policies(hidden_rows="mean").choices)
        found = find(causes, oracle, other.expected.quantities["output"])
        assert isinstance(found, PolicyDeviation)
        assert oracle.evaluated == 0


def test_searches_that_find_nothing_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``SEARCHES`` failures that nothing explains, only known causes are tried."""
    monkeypatch.setattr(module, "SEARCHES", 2)
    causes, oracle = Causes(), build_oracle(0)
    known = apply_fault(oracle, "scale_missing")
    assert isinstance(find(causes, oracle, known), LooksLike)
    noise = torch.randn(oracle.expected.quantities["output"].shape, generator=torch.Generator().manual_seed(0))
    counts = []
    for _ in range(3):
        assert find(causes, oracle, noise) is None
        counts.append(oracle.evaluated)
    assert counts[0] == counts[1] > 10
    assert counts[2] <= 2
    assert isinstance(find(causes, oracle, known), LooksLike)
