"""How much of a suite was checked on each implementation, and whether that is enough for a verdict."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from attnbench.analysis.root_causes import RootCause
from attnbench.analysis.summary import Conformance, Verdict
from attnbench.cases import LEVELS, NESTED
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import AnsweredThoughRefused
from attnbench.records.types import (
    FAILURES,
    PERF,
    SILENT,
    WITHOUT_CASES,
    Finding,
    Result,
)
from attnbench.refusals import Interpreted

__all__ = [
    "FEWEST_CHECKED",
    "VERDICT_SUITES",
    "Counts",
    "count_cases",
    "count_checked",
    "is_checked",
    "is_refused",
    "judge_conformance",
]

# Fewest checked cases with which a verdict is given. Without this limit, foreign modules were said to conform after 2,
# 1 and 0 cases. The smallest suite, ``quick``, has 30 cases, with one form of each argument.
FEWEST_CHECKED = 20
# Suites that give a verdict if the whole suite was run.
VERDICT_SUITES = ("quick", "core", "full")
# First words of the reason of a finding on a case that is declared unsupported, in runs of schemas before 8.
_REFUSED_BEFORE_8 = "declared unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many cases of one implementation were checked.

    ``in_part`` is the number of checked cases on which some check was refused. ``not_run`` is the number of cases
    without any finding of a check or refusal. ``failed`` also counts cases that are declared unsupported, but were
    called and gave a wrong result; ``checked`` does not count such cases.
    """

    cases: int
    checked: int
    in_part: int
    refused: int
    not_run: int
    failed: int


def judge_conformance(results: Iterable[Result], *, missing: int = 0, causes: Sequence[RootCause] = ()) -> Conformance:
    """Return the verdict on one implementation from all its results at one place.

    A failed check of any result is a ``no``, also before timing; results of a search for the max length do not count.
    Otherwise the checked cases of one suite decide, with those of the suites that it contains. It is the suite with
    most of them; one with fewer than ``FEWEST_CHECKED`` of its own is named only if there is no other. The calls of a
    profile are checked with some checks only: without cases of a suite they give ``only``, whatever their number.
    ``missing`` is the number of planned cases without a result, and ``causes`` are the causes of the failures.
    """
    every = [result for result in results if result.suite not in WITHOUT_CASES]
    own = [result for result in every if result.suite != PERF]
    if not count_checked(own):
        own = every
    suite, cases = _select_suite(own)
    refused = _count_refusals(own)
    failed = any(finding.status in FAILURES for result in every for finding in result.findings)
    silent: Verdict = "refused" if 2 * refused.total() >= len({result.case for result in own}) > 0 else "unknown"
    held: Verdict = "yes" if len(cases) >= FEWEST_CHECKED and suite != PERF else "only"
    return Conformance(
        verdict="no" if failed else held if cases else silent,
        suite=suite,
        checked=len(cases),
        refused=tuple(refused.most_common()),
        causes=tuple(causes),
        missing=missing,
        interpreted=any(isinstance(result.untimed, Interpreted) for result in every if is_checked(result)),
    )


def _select_suite(results: Iterable[Result]) -> tuple[str, set[str]]:
    """Return the suite that gives the verdict, and its checked cases; an empty suite if no case was checked."""
    own: dict[str, set[str]] = {}
    for result in results:
        if is_checked(result):
            own.setdefault(result.suite, set()).add(result.case)
    whole = {
        suite: set(chain.from_iterable(own.get(level, ()) for level in NESTED[: NESTED.index(suite) + 1]))
        if suite in NESTED
        else cases
        for suite, cases in own.items()
    }
    order = sorted(whole, key=lambda suite: (len(own[suite]) >= FEWEST_CHECKED, suite in LEVELS, len(whole[suite])))
    return (order[-1], whole[order[-1]]) if order else ("", set())


def _count_refusals(results: Iterable[Result]) -> Counter[Fact | str]:
    """Count the refused cases by the refusal: its first fact, or the reason in a run of an older schema."""
    found: dict[str, Fact | str] = {}
    for result in results:
        first = next((finding for finding in result.findings if finding.status == "unsupported"), None)
        if first is not None and not is_checked(result):
            found[result.case] = first.facts[0] if first.facts else first.reason
    return Counter(found.values())


def count_cases(results: Sequence[Result], planned: int = 0) -> Counts:
    """Count the cases of one implementation in one suite; ``planned`` is their planned number, 0 if not known."""
    of_case: dict[str, list[Finding]] = {}
    for result in results:
        of_case.setdefault(result.case, []).extend(result.findings)
    count: Counter[str] = Counter()
    for findings in of_case.values():
        statuses = {finding.status for finding in findings}
        checked, refused = any(map(_is_of_a_check, findings)), "unsupported" in statuses
        count["checked"] += checked
        count["in_part"] += checked and refused
        count["refused"] += refused and not checked
        count["failed"] += not FAILURES.isdisjoint(statuses)
        count["begun"] += bool(statuses - {"not_run"})
    cases = max(planned, len(of_case))
    return Counts(
        cases=cases,
        checked=count["checked"],
        in_part=count["in_part"],
        refused=count["refused"],
        not_run=cases - count["begun"],
        failed=count["failed"],
    )


def count_checked(results: Iterable[Result]) -> int:
    """Return the number of results with a finding that is neither refused nor not run.

    A finding about the refusal itself does not count.
    """
    return sum(map(is_checked, results))


def is_checked(result: Result) -> bool:
    """Whether a result has a finding that is neither refused nor not run, and not about the refusal itself."""
    return any(map(_is_of_a_check, result.findings))


def is_refused(result: Result) -> bool:
    """Whether no check of a case ran because the implementation refuses it."""
    return not is_checked(result) and any(f.status == "unsupported" for f in result.findings)


def _is_of_a_check(finding: Finding) -> bool:
    """Whether a check ran on a case that is not declared unsupported."""
    refused = any(isinstance(fact, AnsweredThoughRefused) for fact in finding.facts)
    return finding.status not in SILENT and not refused and not finding.reason.startswith(_REFUSED_BEFORE_8)
