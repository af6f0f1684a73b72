"""The results of both sides of an implementation, the base's first, and what they are fit for."""

from collections.abc import Iterable, Mapping

from attnbench.records.types import Result
from attnbench.refusals import TypedRefusal

__all__ = ["Results", "has_passed", "is_unfit", "pair_results"]

# The results of a run by implementation and case.
Results = Mapping[tuple[str, str], Result]


def pair_results(before: Results, after: Results, shown: tuple[str, str]) -> dict[str, tuple[Result, Result]]:
    """Return the results of both sides on each case that both have.

    ``before`` and ``after`` have the results of the base and of the new side by implementation and case, and ``shown``
    are the names of the sides there.
    """
    base, new = shown
    by_case = {case: one for (name, case), one in before.items() if name == base}
    own = ((case, one) for (name, case), one in after.items() if name == new)
    return {case: (by_case[case], one) for case, one in own if case in by_case}


def is_unfit(old: Result, now: Result) -> bool:
    """Whether no times are expected: a side fails its checks or refuses the case, or the base must not be timed."""
    fails = any(finding.status != "passed" for finding in (*old.findings, *now.findings))
    return fails or isinstance(old.untimed, TypedRefusal)


def has_passed(results: Iterable[Result], name: str) -> bool:
    """Whether a check of an implementation passed, or failed as expected."""
    own = (result for result in results if result.implementation == name)
    return any(finding.status in ("passed", "expected_failure") for result in own for finding in result.findings)
