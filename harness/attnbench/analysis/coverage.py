"""How much of a suite was checked on each implementation, in words, and whether that is enough for a verdict."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from attnbench.analysis.root_causes import RootCause
from attnbench.analysis.summary import Conformance, Verdict
from attnbench.cases import LEVELS, NESTED
from attnbench.records.facts import Fact
from attnbench.records.types import (
    CHANGED_MIND,
    DECLARED_UNSUPPORTED,
    FAILURES,
    FRONTIER,
    PERF,
    SILENT,
    Completion,
    Finding,
    Result,
)

__all__ = [
    "FEWEST_CHECKED",
    "MEANING",
    "VERDICT_SUITES",
    "Counts",
    "count_cases",
    "count_checked",
    "describe_asking",
    "describe_completion",
    "describe_few",
    "is_checked",
    "judge_conformance",
    "list_coverage_lines",
]

# Fewest checked cases with which a verdict is given. Without this limit, foreign modules were said to conform after 2,
# 1 and 0 cases. The smallest suite, ``quick``, has 30 cases, with one form of each argument.
FEWEST_CHECKED = 20
# Suites that give a verdict if the whole suite was run.
VERDICT_SUITES = ("quick", "core", "full")
# Words for combinations of values, by the number of values in each combination.
COMBINATIONS = {1: "values", 2: "pairs", 3: "triples"}
# What the words of the counts mean.
MEANING = (
    "A case is one input of a suite. It is checked if at least one check ran, and in part if others were refused. It "
    "is refused if no check ran because the implementation refuses it. It was not run if no check ran for another "
    "reason. It failed if a check failed, unless the failure is an expected one. The calls of a profile are cases of "
    "their own, and are not counted here."
)


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

    @property
    def words(self) -> str:
        """The counts in words: "15 of 30 cases checked (2 of them in part), 15 refused, none failed"."""
        part = f" ({self.in_part} of them in part)" if self.in_part else ""
        refused = f", {self.refused} refused" if self.refused else ""
        left = f", {self.not_run} not run" if self.not_run else ""
        return f"{self.checked} of {self.cases} cases checked{part}{refused}{left}, {self.failed or 'none'} failed"


def judge_conformance(results: Iterable[Result], *, missing: int = 0, causes: Sequence[RootCause] = ()) -> Conformance:
    """Return the verdict on one implementation from all its results at one place.

    A failed check of any result is a ``no``, also before timing; results of a search for the max length do not count.
    Otherwise the checked cases of one suite decide, with those of the suites that it contains. It is the suite with
    most of them; one with fewer than ``FEWEST_CHECKED`` of its own is named only if there is no other. The calls of a
    profile are checked with some checks only: without cases of a suite they give ``only``, whatever their number.
    ``missing`` is the number of planned cases without a result, and ``causes`` are the causes of the failures.
    """
    every = [result for result in results if result.suite != FRONTIER]
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


def describe_few(checked: int) -> str:
    """Return why this number of checked cases is too small for a verdict; empty if the number is large enough."""
    if checked >= FEWEST_CHECKED:
        return ""
    counted = f"only {checked} case{'s were' if checked != 1 else ' was'}" if checked else "no case was"
    return f"{counted} checked, and a verdict needs {FEWEST_CHECKED}"


def describe_completion(completion: Completion) -> str:
    """Return which share of the reference's combinations an implementation takes, and which share of these was covered.

    An example is "takes 31 % of the reference's pairs; all of them covered, with 92 supplementary cases". If the suite
    does not cover combinations, the line has only the supplementary cases. The text is empty if the implementation
    takes every case.
    """
    further = _count_things(len(completion.cases), "supplementary case")
    left = sum(map(len, completion.refused.values())) + len(completion.unanswered)
    if not completion.strength:
        of = f"{left} of {completion.listed} cases of {completion.suite}"
        return f"refuses {of}; {further} of the pool added" if completion.cases else ""
    if not (left or completion.refused_when_called):
        return ""
    words = COMBINATIONS.get(completion.strength, f"combinations of {completion.strength} values")
    if not completion.taken:
        return f"takes none of the reference's {words}: nothing was covered"
    added = f", with {further}" if completion.cases else ""
    called = completion.refused_when_called or 0
    counted = f"{called} cases were" if called > 1 else "1 case was"
    late = f"; {counted} refused only when called" if called else ""
    return (
        f"takes {_format_share(completion.taken, completion.combinations)} of the reference's {words}; "
        f"{_format_share(completion.covered, completion.taken)} of them covered{added}{late}"
    )


def describe_asking(completion: Completion) -> Iterator[str]:
    """Yield a line for each thing that went wrong when the implementation was asked which cases it supports."""
    yield from completion.notes
    if completion.raised:
        yield (
            f"declarations raised on {completion.raised} of {completion.asked} cases that were asked, "
            f"which count as refused; the first exception: {completion.first_raised}"
        )
    if completion.no_answer:
        yield f"unsupported(case) gave no answer on many cases: {completion.no_answer}"
    elif completion.unasked:
        each_ms = 1e3 * completion.asked_s / max(completion.asked, 1)
        yield (
            f"unsupported(case) is slow: {completion.asked} cases took {completion.asked_s:.3g} s, {each_ms:.3g} ms "
            f"each; {_count_things(completion.unasked, 'further case')} not asked"
        )


def _count_things(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' * (count != 1)}"


def list_coverage_lines(
    results: Sequence[Result], completions: Mapping[str, Completion], planned: Mapping[str, int] | None = None
) -> Iterator[str]:
    """Yield lines about what was checked on each implementation of a run, each beginning with the name.

    ``completions`` are by display name. ``planned`` maps each name to the number of planned cases, 0 if not known. With
    ``planned``, the first line of every implementation counts its cases. Without ``planned``, a line counts them only
    where refusals left fewer than ``FEWEST_CHECKED`` checked cases.
    """
    of_name: dict[str, list[Result]] = {name: [] for name in planned or ()}
    for result in results:
        of_name.setdefault(result.implementation, []).append(result)
    for name, own in of_name.items():
        if planned is not None:
            counts = count_cases(own, planned.get(name, 0))
            yield f"{name}: {counts.words if own else 'not started'}"
        if name in completions:
            if line := describe_completion(completions[name]):
                yield f"{name} {line}"
            yield from (f"{name}: {line}" for line in describe_asking(completions[name]))
        yield from (f"{name}: {line}" for line in _describe_changes(own))
        if planned is None and (line := _describe_refusals(own)):
            yield f"{name}: {line}"


def _describe_refusals(results: Sequence[Result]) -> str:
    """Return how many cases were checked and refused; empty unless refusals left fewer than ``FEWEST_CHECKED``."""
    refused = sum(_is_refused(result) for result in results)
    checked = count_checked(results)
    if not checked < FEWEST_CHECKED <= checked + refused:
        return ""
    return (
        f"{checked} of {len(results)} cases checked, {refused} refused; a verdict needs {FEWEST_CHECKED} checked cases"
    )


def _is_refused(result: Result) -> bool:
    return not is_checked(result) and any(f.status == "unsupported" for f in result.findings)


def _describe_changes(results: Iterable[Result]) -> Iterator[str]:
    """Yield on how many cases the declaration changed after the run was planned, with the first of these cases."""
    changed = [
        (result.case, warning)
        for result in results
        for finding in result.findings
        for warning in finding.warnings
        if isinstance(warning, str) and warning.startswith(CHANGED_MIND)
    ]
    if changed:
        case, warning = changed[0]
        cases = len(Counter(case for case, _ in changed))
        yield f"{warning}; the first answer counts ({cases} case{'s' * (cases > 1)}, the first is {case})"


def _is_of_a_check(finding: Finding) -> bool:
    return finding.status not in SILENT and not finding.reason.startswith(DECLARED_UNSUPPORTED)


def _format_share(part: int, whole: int) -> str:
    """Format a share in per cent, rounded down: "all" only if no part is missing, and "none" only if ``part`` is 0."""
    if part >= whole:
        return "all"
    return f"{100 * part // whole} %" if 100 * part >= whole else "less than 1 %" if part else "none"
