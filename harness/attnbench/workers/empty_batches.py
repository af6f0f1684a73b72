"""Calls without sequences, which the policy ``empty_batches`` allows an implementation to refuse by an exception."""

from collections.abc import Callable

from msgspec.structs import replace

from attnbench.analysis.deviations import make_deviation
from attnbench.cases import Case
from attnbench.interface import Policies
from attnbench.processes.candidate_requests import Outcome
from attnbench.records.outcome_facts import EmptyBatchRefused
from attnbench.workers.outcomes import run_for_outcome

__all__ = ["judge_empty_batch"]


def judge_empty_batch(
    policies: Policies, case: Case, call: Callable[[], object], run_check: Callable[[], None]
) -> Outcome | None:
    """Run a check, and return its outcome, or None if the check has made observations.

    ``call`` makes the plain call of the case. It replaces the check on a case without sequences if the policies declare
    that the implementation refuses such cases: if ``call`` raises, the case is refused, otherwise the check has failed.
    """
    if case.problem.sequences:
        return run_for_outcome(run_check)
    if policies.empty_batches == "computed":
        outcome = run_for_outcome(run_check)
        if outcome is None or outcome.status != "error":
            return outcome
        return replace(outcome, facts=(*outcome.facts, make_deviation(policies, empty_batches="refused")))
    called = run_for_outcome(call)
    if not isinstance(called, Outcome):
        return Outcome(status="failed", facts=(make_deviation(policies, empty_batches="computed"),))
    if called.status == "error":
        return Outcome(status="unsupported", facts=(EmptyBatchRefused(),))
    return called
