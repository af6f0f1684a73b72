"""The report of a conformance run, as Python values and as text."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from typing import Self

from attnbench.analysis.coverage import count_checked, describe_few, list_coverage_lines
from attnbench.analysis.root_causes import find_root_causes
from attnbench.api.printed import format_reasons
from attnbench.checks.catalogue import list_chapters, read_checks
from attnbench.plugins.registry import display_name
from attnbench.records.types import FAILURES, Completion, Finding, Result, Status, format_reproduce_line
from attnbench.words.causes import describe_cause, title_cause
from attnbench.words.findings import describe_finding

__all__ = ["DETAILED_CAUSES", "ConformanceError", "Failure", "Report", "format_finding"]

SIGNS: tuple[tuple[str, tuple[Status, ...]], ...] = (
    ("✗", tuple(sorted(FAILURES))),
    ("✓", ("passed",)),
    ("~", ("expected_failure",)),
    ("–", ("unsupported",)),
    ("·", ("not_run",)),
)
LEGEND = "✓ passed   ✗ failed   ~ expected to fail   – refused, with a reason   · not run"
# Largest number of causes of failures that a printed report describes. ``Report.failures`` contains all failures.
DETAILED_CAUSES = 12


class ConformanceError(AssertionError):
    """Raised if an implementation does not conform; the message is the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A finding that makes a run fail, with its implementation and case."""

    implementation: str
    case: str
    finding: Finding

    @property
    def reproduce(self) -> str:
        """Command that re-runs this check on this case."""
        return format_reproduce_line(self.implementation, self.case, self.finding.check)

    def __str__(self) -> str:
        return format_finding(self.implementation, self.case, self.finding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Results of one implementation on the cases of a suite."""

    # Name by which the implementation is loaded; the command in ``Failure.reproduce`` uses this name.
    implementation: str
    suite: str
    results: tuple[Result, ...]
    # What the implementation declared, and its supplementary cases; None if it was not asked before the run.
    completion: Completion | None = None
    # Whether every case of the suite was run with every check. If so, a verdict needs 20 checked cases.
    whole: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding, in the order of the cases."""
        return tuple(finding for result in self.results for finding in result.findings)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Findings that failed, each with its case and the command that reproduces the failure."""
        return tuple(
            Failure(implementation=self.implementation, case=result.case, finding=finding)
            for result in self.results
            for finding in result.findings
            if finding.status in FAILURES
        )

    @property
    def counts(self) -> Counter[Status]:
        """Number of findings of each status."""
        return Counter(finding.status for finding in self.findings)

    @property
    def ok(self) -> bool:
        """Whether at least one check passed or failed as expected, and no check failed in any other way.

        It is False if too few cases of a whole suite were checked (``undecided``).
        """
        counts = self.counts
        held = counts["passed"] + counts["expected_failure"]
        return bool(held) and not self.undecided and not any(counts[status] for status in FAILURES)

    @property
    def undecided(self) -> str:
        """Why too few cases were checked for a verdict; empty if they are enough, or if cases were selected."""
        return describe_few(count_checked(self.results)) if self.whole else ""

    def raise_if_failed(self) -> Self:
        """Return the report itself if it is ``ok``.

        Raises: ConformanceError where the report is not ``ok``; the message is the report.
        """
        if not self.ok:
            raise ConformanceError(f"{display_name(self.implementation)} does not conform\n{self}")
        return self

    def __str__(self) -> str:
        return "\n".join(_format_report(self))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def format_finding(implementation: str, case: str, finding: Finding) -> str:
    """Format a failed finding: the fault, the requirement, and the command that re-runs the check."""
    known = read_checks().get(finding.check)
    requirement = known.requirement if known else finding.check
    status = "" if finding.status == "failed" else f"{finding.status.replace('_', ' ')}: "
    return (
        f"{status}{describe_finding(finding)}\n"
        f"  requirement  {requirement}\n"
        f"  reproduce    {format_reproduce_line(implementation, case, finding.check)}"
    )


def _format_report(report: Report) -> Iterator[str]:
    """Yield the lines of the report: counts by chapter, failures, refused cases and cases not run, and a summary."""
    cases = _pluralize(len(report.results), "case")
    yield f"{display_name(report.implementation)}: {cases} of the suite {report.suite}"
    by_chapter: defaultdict[str, Counter[Status]] = defaultdict(Counter)
    for finding in report.findings:
        known = read_checks().get(finding.check)
        by_chapter[known.chapter if known else "?"][finding.status] += 1
    width = max(map(len, by_chapter), default=0)
    for chapter in (*list_chapters(), "?"):
        if chapter in by_chapter:
            yield f"  {chapter:{width}}  {_format_counts(by_chapter[chapter])}"
    yield LEGEND
    yield from _format_failures(report)
    for status, words in (("unsupported", "refused"), ("not_run", "not run")):
        reasons = Counter(describe_finding(finding) for finding in report.findings if finding.status == status)
        if reasons:
            yield f"{words}: {_pluralize(reasons.total(), 'finding')}: {format_reasons(reasons)}"
    yield from list_coverage_lines(report.results, _get_completions(report))
    counts = report.counts
    asked = counts.total() - counts["unsupported"] - counts["not_run"]
    failed = len(report.failures)
    if report.undecided:
        yield f"no verdict: {report.undecided}"
    if report.undecided and not failed:
        return
    if not asked:
        yield "nothing was checked"
    else:
        yield f"{failed} of {asked} findings failed" if failed else f"all {asked} findings held"


def _get_completions(report: Report) -> dict[str, Completion]:
    return {report.completion.implementation: report.completion} if report.completion else {}


def _format_counts(counts: Counter[Status]) -> str:
    totals = ((sign, sum(counts[status] for status in statuses)) for sign, statuses in SIGNS)
    return "   ".join(f"{sign} {total}" for sign, total in totals if total)


def _format_failures(report: Report) -> Iterator[str]:
    # The command to reproduce a failure needs the name by which the implementation is loaded.
    named = (replace(result, implementation=report.implementation) for result in report.results)
    causes = find_root_causes(named)
    for cause in causes[:DETAILED_CAUSES]:
        yield f"\n{title_cause(cause)}"
        yield from (f"  {line}" for line in describe_cause(cause))
    if len(causes) > DETAILED_CAUSES:
        yield f"\n… and {_pluralize(len(causes) - DETAILED_CAUSES, 'more cause')} of failures"
    if causes:
        yield ""


def _pluralize(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
