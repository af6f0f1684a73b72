"""Tests of the oracle cache: inputs and expected values are computed once, and kept in memory or on disk."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.cases import Case
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.suites import CROSS
from attnbench.oracle.cache import OracleCache


class CountingOperator:
    """The operator ``multihead``, counting the calls of each of its methods."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(OPERATOR, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return found(*arguments, **named)

        return call


def case(seed: int = 0, **common: Any) -> Case:
    """Return a case that has fully masked rows and returns attention weights."""
    one = Case(operator="multihead", problem=CROSS, mode="inference").with_problem(
        seed=seed, mask="bool2d+padempty", need_weights=True
    )
    return one.with_fields(**common)


@pytest.fixture
def operator() -> Any:
    """Return the operator ``multihead`` with counted calls."""
    return CountingOperator()


def test_inputs_are_drawn_once(tmp_path: Path, operator: Any) -> None:
    """All modes of a case share one file of inputs, which the oracle uses too; another dtype gets another file."""
    cache = OracleCache(tmp_path)
    path = cache.get_inputs_file(case(), operator)
    case_oracle = cache.get_case_oracle(case(), operator, "float32")
    assert cache.get_inputs_file(case(mode="train"), operator) == path
    assert cache.get_inputs_file(case(dtype="float64"), operator) != path
    assert operator.calls["inputs"] == 2
    assert torch.equal(case_oracle.inputs.tensors["query"], OPERATOR.inputs(case()).tensors["query"])


def test_expected_values_are_computed_once(tmp_path: Path, operator: Any) -> None:
    """A second request with the same precision evaluates nothing; another precision gives other allowances."""
    cache = OracleCache(tmp_path)
    first = cache.get_case_oracle(case(), operator, "float32")
    evaluations = operator.calls["evaluate"]
    assert cache.get_case_oracle(case(), operator, "float32") is first
    assert operator.calls["evaluate"] == evaluations
    assert cache.get_case_oracle(case(), operator, "tf32").expected.allowances != first.expected.allowances
    assert operator.calls["evaluate"] == 2 * evaluations


def test_expected_values_beyond_the_memory_budget_are_on_disk(tmp_path: Path, operator: Any) -> None:
    """Expected values on disk are restored without evaluating the oracle; inputs are read from the file of inputs."""
    cache = OracleCache(tmp_path, memory_bytes=1)
    first = cache.get_case_oracle(case(0), operator, "float32").expected
    cache.get_case_oracle(case(1), operator, "float32")
    before = Counter(operator.calls)
    again = cache.get_case_oracle(case(0), operator, "float32")
    assert again.expected is not first
    assert again.expected.allowances == first.allowances
    for name, tensor in first.quantities.items():
        assert torch.equal(again.expected.quantities[name], tensor)
    for name, rows in first.hidden_rows.items():
        assert torch.equal(again.expected.hidden_rows[name], rows)
    assert again.inputs.options == OPERATOR.inputs(case(0)).options
    assert (operator.calls["evaluate"], operator.calls["inputs"]) == (before["evaluate"], before["inputs"])


def test_expected_values_that_do_not_fit_on_disk_are_computed_again(tmp_path: Path, operator: Any) -> None:
    """Without room in memory and on disk, the oracle is evaluated again, and no file is written."""
    cache = OracleCache(tmp_path, memory_bytes=1, disk_bytes=0)
    cache.get_case_oracle(case(0), operator, "float32")
    cache.get_case_oracle(case(1), operator, "float32")
    before = operator.calls["evaluate"]
    cache.get_case_oracle(case(0), operator, "float32")
    assert operator.calls["evaluate"] > before
    assert list(tmp_path.glob("*.expected")) == []
