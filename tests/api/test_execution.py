"""Tests of how a command runs its checks: what is told while they run."""

import logging

import pytest

from attnbench.api import execution
from attnbench.records.types import Finding, Result
from made_facts import LOOKS, OFF

CASE = "multihead/B2.L5.S7.E24.H3/bias/mask=none/regime=plain/seed={seed}/float32/cpu/eval"


def make_result(seed: int, *facts: object, status: str = "failed") -> Result:
    """Return a result of one finding with these facts."""
    finding = Finding(check="forward_parity", status=status, facts=facts)  # type: ignore[arg-type]
    return Result(run="a", implementation="one", case=CASE.format(seed=seed), suite="core", findings=(finding,))


def test_the_first_failure_and_the_first_known_mistake_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A first failure without a known mistake is told; later failures only until one says what to mend."""
    announced: dict[str, bool] = {}
    with caplog.at_level(logging.WARNING):
        for number, facts in enumerate([(OFF,), (OFF,), (OFF, LOOKS), (OFF, LOOKS)]):
            execution._announce_cause(make_result(number, *facts), announced)
    first, second = caplog.messages
    assert first == f"one fails: forward_parity, on {CASE.format(seed=0)}"
    assert second.startswith("one fails: ")
    assert second.endswith(f", on {CASE.format(seed=2)}")
    assert "forward_parity" not in second


def test_nothing_is_told_of_results_without_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A result that passed, or failed as expected, is not told."""
    for status in ("passed", "expected_failure"):
        execution._announce_cause(make_result(0, *[OFF] * (status != "passed"), status=status), {})
    assert caplog.messages == []
