"""What is known of cases: computed once, kept in memory up to a budget, beyond it on disk."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.cases import Case
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.suites import CROSS
from attnbench.oracle.cache import OracleCache


class Counting:
    """The operator, with what was asked of it counted."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(OPERATOR, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self.asked[name] += 1
            return found(*arguments, **named)

        return call


def case(seed: int = 0, **common: Any) -> Case:
    """Case with hidden rows and weights."""
    one = Case(operator="multihead", problem=CROSS, mode="inference").with_problem(
        seed=seed, mask="bool2d+padempty", need_weights=True
    )
    return one.with_fields(**common)


@pytest.fixture
def operator() -> Any:
    """The operator, counting."""
    return Counting()


def test_inputs_are_drawn_once(tmp_path: Path, operator: Any) -> None:
    """For the worker's file and for the oracle, and for every mode."""
    archive = OracleCache(tmp_path)
    path = archive.get_inputs_file(case(), operator)
    known = archive.get_case_oracle(case(), operator, "float32")
    assert archive.get_inputs_file(case(mode="train"), operator) == path
    assert archive.get_inputs_file(case(dtype="float64"), operator) != path
    assert operator.asked["inputs"] == 2
    assert torch.equal(known.inputs.tensors["query"], OPERATOR.inputs(case()).tensors["query"])


def test_a_truth_is_computed_once(tmp_path: Path, operator: Any) -> None:
    """For all implementations of one precision; another precision has budgets of its own."""
    archive = OracleCache(tmp_path)
    first = archive.get_case_oracle(case(), operator, "float32")
    evaluations = operator.asked["evaluate"]
    assert archive.get_case_oracle(case(), operator, "float32") is first
    assert operator.asked["evaluate"] == evaluations
    assert archive.get_case_oracle(case(), operator, "tf32").expected.allowances != first.expected.allowances
    assert operator.asked["evaluate"] == 2 * evaluations


def test_beyond_the_budget_truths_are_on_disk(tmp_path: Path, operator: Any) -> None:
    """They come back as they were, without the oracle; inputs are read again, not drawn."""
    archive = OracleCache(tmp_path, memory_bytes=1)
    first = archive.get_case_oracle(case(0), operator, "float32").expected
    archive.get_case_oracle(case(1), operator, "float32")
    before = Counter(operator.asked)
    again = archive.get_case_oracle(case(0), operator, "float32")
    assert again.expected is not first
    assert again.expected.allowances == first.allowances
    for name, tensor in first.quantities.items():
        assert torch.equal(again.expected.quantities[name], tensor)
    for name, rows in first.hidden_rows.items():
        assert torch.equal(again.expected.hidden_rows[name], rows)
    assert again.inputs.options == OPERATOR.inputs(case(0)).options
    assert (operator.asked["evaluate"], operator.asked["inputs"]) == (before["evaluate"], before["inputs"])


def test_what_does_not_fit_on_disk_is_computed_again(tmp_path: Path, operator: Any) -> None:
    """Neither memory nor disk fills up."""
    archive = OracleCache(tmp_path, memory_bytes=1, disk_bytes=0)
    archive.get_case_oracle(case(0), operator, "float32")
    archive.get_case_oracle(case(1), operator, "float32")
    before = operator.asked["evaluate"]
    archive.get_case_oracle(case(0), operator, "float32")
    assert operator.asked["evaluate"] > before
    assert list(tmp_path.glob("*.expected")) == []
