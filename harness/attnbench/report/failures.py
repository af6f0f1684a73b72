"""The failures of a report: one group for each root cause, with the command that reproduces its worst case."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from attnbench.analysis.root_causes import Failure, RootCause, find_root_causes
from attnbench.cases import CaseId
from attnbench.checks.catalogue import read_checks
from attnbench.records.run_file import StoredRun, has_failure
from attnbench.records.types import PERF, Finding, Result, format_reproduce_line
from attnbench.records.value_facts import BitsDiffer, ValuesOff
from attnbench.report.columns import Columns, TableColumn
from attnbench.report.numbers import format_digits, shorten_text
from attnbench.report.slugs import make_slug
from attnbench.words.causes import describe_attributions, describe_shared, name_cause
from attnbench.words.failures import (
    OWNER,
    count_cases,
    describe_excess,
    describe_followers,
    describe_hidden_groups,
    describe_statuses,
    introduce_case,
    introduce_follower,
    list_checks,
)
from attnbench.words.findings import describe_finding, describe_reason
from attnbench.words.say import say

__all__ = [
    "FAILURES",
    "FailureGroup",
    "Failures",
    "ListedCase",
    "MachineDevice",
    "collect_failures",
    "rank_cause",
    "split_by_device",
]

# Most groups on a page. More than a reader looks at; each has about 3 kB of HTML.
MOST_GROUPS = 200
# ``MOST_CASES``: most cases that are listed below a group. ``MOST_CASES_OF_ALL``: most cases on a page; each has about
# 300 bytes of HTML.
MOST_CASES, MOST_CASES_OF_ALL = 20, 1000
# Fewest cases that are listed below a group, however many groups there are.
LEAST_CASES = 3
# Longest texts on a page, in characters; findings.csv has whole reasons. ``LONGEST_REASON``: of the reason of a group;
# a reason of today's checks has at most 600. ``LONGEST_OF_CASE``: of what was found on a listed case.
LONGEST_REASON, LONGEST_OF_CASE = 800, 160
# Most groups that are shown without unfolding. ``UNFOLDED``: of one implementation. ``UNFOLDED_OF_ALL``: of all
# implementations. A group takes 150 pixels of height.
UNFOLDED, UNFOLDED_OF_ALL = 5, 20
# Longest cause in a title and in the verdict, in characters.
LONGEST_CAUSE = 110


class MachineDevice(NamedTuple):
    """A machine and one of its devices; ``label`` names the device only if there are results of several."""

    machine: str
    device: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCase:
    """One failed finding of a group; ``excess`` is its error divided by the allowed error, in words, or empty."""

    check: str
    case: str
    status: str
    excess: str
    # What was found instead of what the check requires.
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """The failures of a group whose reasons do not name its cause, with the worst of them."""

    # How many there are, their checks, and why they are counted with this cause.
    words: str
    worst: ListedCase
    command: str

    @property
    def found(self) -> str:
        """What ``worst`` is, and its error over the allowed error, in words."""
        return introduce_follower(self.worst.excess)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """The failures of one implementation on one machine and device that have one root cause."""

    # The machine, and the device if the report has results of several devices of this machine.
    machine: str
    implementation: str
    kind: str
    # ``checks``, ``statuses``: number of failed findings by check and by status. ``named``: by check, the number of
    # those whose reasons name the cause. ``cases``: number of cases with a failure. ``where``: these cases by suite, in
    # words.
    checks: dict[str, int]
    named: dict[str, int]
    statuses: dict[str, int]
    cases: int
    where: str
    # What the check requires; empty if several checks failed for one cause.
    requirement: str
    # What the findings have in common, without the numbers of a case; may be empty.
    shared: str
    # The cause in words; where no cause is known, the check.
    title: str
    # Of the findings that the title is about, the one with the largest quotient of error and allowed error; of equal
    # ones, the one with the worst effect.
    worst: ListedCase
    # Whether no other finding is worse than ``worst``.
    is_worst: bool
    # Error of ``worst`` divided by the allowed error; NaN where no error was measured.
    excess: float
    command: str
    attributed: Attributed | None
    # The findings that are listed, the worst first; the others are only in findings.csv.
    listed: tuple[ListedCase, ...]
    # Different warnings of the findings.
    warnings: tuple[str, ...]
    # Ids of the element of this group on the page: one for each check that no earlier group has, else a numbered id.
    anchors: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of failed findings."""
        return sum(self.checks.values())

    @property
    def size(self) -> str:
        """Statuses and number of cases in words."""
        return describe_statuses(self.statuses, self.where)

    @property
    def found(self) -> str:
        """What ``worst`` is, and its error over the allowed error, in words."""
        return introduce_case(self.worst.excess, worst=self.is_worst)

    @property
    def by_check(self) -> str:
        """The checks that name a cause, with the number of cases of each; empty if the title is the only check."""
        return "" if [*self.checks] == [self.title] else list_checks(self.named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """All failures of a report: the groups on the page, and all groups, the worst first."""

    shown: tuple[FailureGroup, ...]
    groups: tuple[FailureGroup, ...]
    # Anchor of the group on the page, by machine, implementation and check.
    anchors: dict[tuple[str, str, str], str]

    @property
    def headings(self) -> dict[tuple[str, str], str]:
        """Anchor of each implementation's heading on the page, by machine and implementation."""
        several = len({group.machine for group in self.groups}) > 1
        return {
            (group.machine, group.implementation): make_slug(
                "failures", group.implementation, *[group.machine] * several
            )
            for group in self.shown
        }

    @property
    def sentence(self) -> str:
        """How many groups are left out; may be empty."""
        return describe_hidden_groups(len(self.shown), len(self.groups))

    @property
    def blocks(self) -> list[tuple[str, str, tuple[FailureGroup, ...], tuple[FailureGroup, ...]]]:
        """The shown groups by implementation: anchor, heading, the groups to show at once, and the groups to fold."""
        several = len({group.machine for group in self.groups}) > 1
        owned: defaultdict[tuple[str, str], list[FailureGroup]] = defaultdict(list)
        for group in self.shown:
            owned[group.machine, group.implementation].append(group)
        limit = max(1, min(UNFOLDED, UNFOLDED_OF_ALL // max(1, len(owned))))
        return [
            (
                self.headings[machine, name],
                say(OWNER, name=name, machine=machine) if several else name,
                tuple(own[:limit]),
                tuple(own[limit:]),
            )
            for (machine, name), own in owned.items()
        ]


def split_by_device(runs: Iterable[StoredRun], results: Iterable[Result]) -> dict[MachineDevice, list[Result]]:
    """Return the results of each machine and device, in the order of their names."""
    machines = {stored.run.id: stored.run.machine.name for stored in runs}
    found: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        found.setdefault((machines[result.run], CaseId.parse(result.case).device), []).append(result)
    counts = Counter(machine for machine, _ in found)
    return {
        MachineDevice(machine, device, f"{machine}, {device}" if counts[machine] > 1 else machine): own
        for (machine, device), own in sorted(found.items())
    }


def collect_failures(runs: Iterable[StoredRun], results: Sequence[Result]) -> Failures:
    """Group the failures of these results by machine and root cause, in the order of ``rank_cause``."""
    causes = [
        (place.label, cause, cases)
        for place, own in split_by_device(runs, results).items()
        for cases in [_index_failed(own)]
        for cause in find_root_causes(own)
    ]
    causes.sort(key=lambda one: rank_cause(one[1]))
    groups = [_make_group(*one) for one in causes]
    shown = list(_set_anchors(_select_shown(groups)))
    limit = max(LEAST_CASES, min(MOST_CASES, MOST_CASES_OF_ALL // max(1, len(shown))))
    anchors: dict[tuple[str, str, str], str] = {}
    for group in shown:
        for check in group.checks:
            anchors.setdefault((group.machine, group.implementation, check), group.anchors[0])
    return Failures(
        shown=tuple(replace(group, listed=group.listed[:limit]) for group in shown),
        groups=tuple(groups),
        anchors=anchors,
    )


def _title_cause(cause: RootCause) -> str:
    """Return what is wrong in a few words, such as "the softmax scale is off by +9.62 %"; else the failed check.

    An error of a scale begins with the name of the check that measured it.
    """
    words = shorten_text(name_cause(cause), LONGEST_CAUSE)
    return f"{cause.finding.check}: {words}" if cause.kind == "scale" else words


def rank_cause(cause: RootCause) -> tuple[tuple[int, int, bool], float, float]:
    """Return by what causes are sorted: ``RootCause.rank``, then the worst effect, then the error over the allowed."""
    findings = [failure.finding for failure in cause.failures]
    return cause.rank, -max(map(_find_effect, findings)), -max(_rank(_find_excess(finding)) for finding in findings)


def _find_effect(finding: Finding) -> float:
    """Return how bad a failure is, as a number by which failures are sorted: the error relative to the right value.

    If the right value is below 1 or not known, the number is the error itself. A failure without a finite error, such
    as a NaN or a wrong shape, is the worst. The number is 0 if there are no wrong values, such as after an exception.
    """
    measured = finding.measured
    if finding.status != "failed":
        return 0.0
    if measured is None or not math.isfinite(measured):
        return math.inf
    wanted = next((fact.expected for fact in finding.facts if isinstance(fact, ValuesOff | BitsDiffer)), 1.0)
    return abs(measured) / max(1.0, abs(float(wanted)))


def _list_counts(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{name} ×{count}" for name, count in counts.items())


def _index_failed(results: Iterable[Result]) -> Mapping[tuple[str, str], list[Result]]:
    """Return the results with a failure, by implementation and case."""
    found: defaultdict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        if has_failure(result):
            found[result.implementation, result.case].append(result)
    return found


def _make_group(machine: str, cause: RootCause, failed: Mapping[tuple[str, str], Sequence[Result]]) -> FailureGroup:
    """Return the group of a cause; ``failed`` are the results with a failure, by implementation and case."""
    failures = sorted(cause.failures, key=_order_failure)
    # The title may be about some failures only. The fault and the command beside it are then of the worst of these.
    worst = min(cause.evidence, key=_order_failure)
    checks, name = dict(cause.checks), cause.implementation
    followers = Counter(failure.finding.check for failure in cause.attributed)
    cases = dict.fromkeys(failure.case for failure in failures)
    return FailureGroup(
        machine=machine,
        implementation=name,
        kind=cause.kind,
        checks=checks,
        named={check: count - followers[check] for check, count in checks.items() if count > followers[check]},
        statuses=dict(Counter(failure.finding.status.replace("_", " ") for failure in failures).most_common()),
        cases=cause.cases,
        where=_count_cases(result for case in cases for result in failed[name, case]),
        requirement=_find_requirement(worst.finding.check) if len(checks) == 1 else "",
        # The title says what a cause of these kinds is.
        shared="" if cause.kind in ("scale", "leak") else shorten_text(describe_shared(cause), LONGEST_REASON),
        title=_title_cause(cause),
        worst=_list_case(worst, LONGEST_REASON),
        is_worst=_order_failure(worst) == _order_failure(failures[0]),
        excess=_find_excess(worst.finding),
        command=format_reproduce_line(name, worst.case, worst.finding.check),
        attributed=_make_attributed(cause, followers) if followers else None,
        listed=tuple(_list_case(failure, LONGEST_OF_CASE) for failure in failures[:MOST_CASES]),
        warnings=tuple(
            dict.fromkeys(describe_reason(warning) for failure in failures for warning in failure.finding.warnings)
        ),
    )


def _count_cases(results: Iterable[Result]) -> str:
    """Return the number of cases of each suite, and of profiles, in words."""
    suites: defaultdict[str, set[str]] = defaultdict(set)
    for result in results:
        suites[result.suite].add(result.case)
    ordered = sorted(suites.items(), key=lambda item: (item[0] == PERF, item[0]))
    return count_cases({suite: len(cases) for suite, cases in ordered})


def _make_attributed(cause: RootCause, checks: Counter[str]) -> Attributed:
    """Return what a cause does not explain with certainty; ``checks`` counts its findings by check."""
    worst = min(cause.attributed, key=_order_failure)
    return Attributed(
        words=describe_followers(dict(checks.most_common()), describe_attributions(cause)),
        worst=_list_case(worst, LONGEST_REASON),
        command=format_reproduce_line(cause.implementation, worst.case, worst.finding.check),
    )


def _order_failure(failure: Failure) -> tuple[float, float]:
    """Return by what failures are sorted, the worst first."""
    return -_rank(_find_excess(failure.finding)), -_find_effect(failure.finding)


def _select_shown(groups: Sequence[FailureGroup]) -> list[FailureGroup]:
    """Return the groups for the page, by implementation; the worst group of each implementation is chosen first."""
    places = {id(group): place for place, group in enumerate(groups)}
    firsts: dict[tuple[str, str], FailureGroup] = {}
    for group in groups:
        firsts.setdefault((group.machine, group.implementation), group)
    owners = {owner: place for place, owner in enumerate(firsts)}
    in_turn = {id(group): group for group in (*firsts.values(), *groups)}
    kept = list(in_turn.values())[:MOST_GROUPS]
    return sorted(kept, key=lambda group: (owners[group.machine, group.implementation], places[id(group)]))


def _set_anchors(groups: Iterable[FailureGroup]) -> Iterator[FailureGroup]:
    """Yield the groups with their anchors; no two groups have the same anchor.

    The first group of an implementation and a check gets an anchor of these two names. A group without such an anchor
    gets one with the machine and a number.
    """
    taken: set[str] = set()
    for number, group in enumerate(groups):
        parts = [("failure", group.implementation, check) for check in group.checks]
        free = [anchor for anchor in dict.fromkeys(make_slug(*one) for one in parts) if anchor not in taken]
        anchors = free or [make_slug(*parts[0], group.machine, str(number))]
        taken.update(anchors)
        yield replace(group, anchors=tuple(anchors))


def _list_case(failure: Failure, longest: int) -> ListedCase:
    finding = failure.finding
    excess = _find_excess(finding)
    return ListedCase(
        check=finding.check,
        case=failure.case,
        status=finding.status.replace("_", " "),
        excess=_describe_excess(finding, excess),
        # The section on methods says how allowed errors are computed.
        fault=shorten_text(describe_finding(finding, origins=False), longest),
    )


def _describe_excess(finding: Finding, excess: float) -> str:
    """Return the error divided by the allowed error, in words; where no error is allowed, the error itself."""
    if math.isnan(excess):
        return ""
    if not finding.allowed and finding.measured is not None:
        return describe_excess(format_digits(finding.measured, 2), exact=True)
    return describe_excess(format_digits(excess), exact=False)


def _find_excess(finding: Finding) -> float:
    """Return the measured error divided by the allowed error; NaN where no error or no allowed error is known."""
    measured, allowed = finding.measured, finding.allowed
    if measured is None or allowed is None or not measured > 0 or not allowed >= 0:
        return math.nan
    return measured / allowed if allowed else math.inf


def _rank(excess: float) -> float:
    return -1.0 if math.isnan(excess) else excess


def _find_requirement(check: str) -> str:
    known = read_checks().get(check)
    return known.requirement if known else ""


# Columns of failures.csv, of ``FailureGroup``.
FAILURES: Columns = (
    TableColumn("machine", "name of the machine, and of the device if it has results of several"),
    TableColumn("implementation", "name of the implementation"),
    TableColumn("kind", "kind of the failures, such as wrong values or exceptions"),
    TableColumn(
        "checks", "the failed checks, each with its number of findings", lambda group: _list_counts(group.checks)
    ),
    TableColumn(
        "statuses", "statuses of the findings, each with its number", lambda group: _list_counts(group.statuses)
    ),
    TableColumn("findings", "number of failed findings", "count"),
    TableColumn("cases", "number of cases with a failure"),
    TableColumn(
        "reason",
        "the requirement, and what the findings have in common",
        lambda group: " ".join(filter(None, (group.requirement, group.shared))),
    ),
    TableColumn("worst_over_allowed", "the largest quotient of error and allowed error", "excess"),
    TableColumn("worst_check", "the check of the worst finding", "worst.check"),
    TableColumn("worst_case", "its case", "worst.case"),
    TableColumn("worst_reason", "what was found there", "worst.fault"),
    TableColumn("command", "the command that repeats it"),
    TableColumn("warnings", "warnings of the findings, one a line", lambda group: "\n".join(group.warnings)),
)
