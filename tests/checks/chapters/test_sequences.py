"""Tests of the checks of the chapters *sequences* and *threads* on modules that are not in the mutant set."""

import threading
from typing import TYPE_CHECKING, Any

import pytest
from torch import Tensor

from attnbench.cases import Case
from attnbench.checks import turns
from attnbench.interface import Policies
from attnbench.mutants.multihead.decorator import build_case_id
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.plugins.registry import load_problem_types
from attnbench.records.value_facts import ConditionViolated

if TYPE_CHECKING:
    from conftest import Conformance

SEQUENCES = ("first_or_later_call", "copies_after_calls", "backward_passes_in_turns")


def case(**changes: Any) -> Case:
    """Return the problem CROSS in float32, with some fields changed."""
    return Case.parse(build_case_id(**changes), load_problem_types())


class _OneAtATime(Formula):
    """Calls wait for one another; a lock cannot be copied, so copies share it."""

    lock = threading.Lock()

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        with self.lock:
            return super().under_masks(query, key, value, **named)


class _EachForTheOther(Formula):
    """A call holds a lock that only another call's end opens."""

    gate = threading.Semaphore(1)

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        free = self.gate.acquire(blocking=False)
        if not free:
            threading.Event().wait()
        found = super().under_masks(query, key, value, **named)
        self.gate.release()
        return found


class _CannotBeCopied(Formula):
    def __init__(self, reference: Any) -> None:
        super().__init__(reference)
        self.lock = threading.Lock()


class _CountsCalls(Formula):
    calls = 0

    def merge(self, heads: Tensor) -> Tensor:
        self.calls += 1
        return super().merge(heads if self.calls == 1 else heads * 1.01)


def test_calls_that_wait_for_one_another_pass(conformance: "Conformance") -> None:
    """A lock around a call is no fault: calls end one after the other."""
    found = conformance.findings(ModuleImplementation(_OneAtATime), case(mode="inference"), ("two_threads",))
    assert [finding.status for finding in found] == ["passed"]


def test_calls_that_never_end_are_a_finding(conformance: "Conformance", monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that do not end are told as such, and further checks run."""
    monkeypatch.setattr(turns, "LIMIT_S", 0.5)
    implementation = ModuleImplementation(_EachForTheOther)
    threads, forward = conformance.findings(implementation, case(mode="inference"), ("two_threads", "forward_parity"))
    assert threads.status == "failed"
    assert isinstance(threads.facts[0], ConditionViolated)
    assert threads.facts[0].violation.key == "threads_wait"
    assert forward.status == "passed"


def test_a_module_that_cannot_be_copied_is_a_finding(conformance: "Conformance") -> None:
    """The copy that fails is named; the other checks of the chapter pass."""
    found = conformance.findings(ModuleImplementation(_CannotBeCopied), case(), SEQUENCES)
    assert {finding.check: finding.status for finding in found} == {
        "first_or_later_call": "passed", "copies_after_calls": "failed", "backward_passes_in_turns": "passed",
    }  # fmt: skip
    fact = next(finding for finding in found if finding.status == "failed").facts[0]
    assert isinstance(fact, ConditionViolated)
    assert fact.violation.key == "deep_copy_raised_later"


@pytest.mark.parametrize("check", SEQUENCES[:2])
def test_what_differs_is_judged_by_the_oracle(conformance: "Conformance", check: str) -> None:
    """A later call of a module that counts its calls differs from the oracle; the finding says after what."""
    (finding,) = conformance.findings(ModuleImplementation(_CountsCalls), case(), (check,))
    assert finding.status == "failed"
    assert finding.facts[0].compared.how is not None


def test_modes_that_are_refused_are_left_out(conformance: "Conformance") -> None:
    """An implementation without a backward pass is called in its own modes only."""
    implementation = ModuleImplementation(
        Formula,
        policies=Policies(forward_only=True),
        unsupported=lambda one: "no backward pass" if one.differentiates else None,
    )
    found = conformance.findings(implementation, case(mode="inference"), SEQUENCES[:1])
    assert [finding.status for finding in found] == ["passed"]
