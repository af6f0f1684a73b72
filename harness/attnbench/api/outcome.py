"""What the checks of a suite came to, as values and in words."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from attnbench.checks.catalogue import chapters, checks
from attnbench.plugins.registry import shown
from attnbench.records.types import FAILURES, Finding, Result, Status, reproduce_line

__all__ = ["TOLD", "ConformanceError", "Failure", "Report", "told"]

SIGNS: tuple[tuple[str, tuple[Status, ...]], ...] = (
    ("✗", tuple(sorted(FAILURES))),
    ("✓", ("passed",)),
    ("~", ("expected_failure",)),
    ("–", ("unsupported",)),
    ("·", ("not_run",)),
)
LEGEND = "✓ passed   ✗ failed   ~ expected to fail   – refused, with a reason   · not run"
# Checks whose first failure is told in full; ``Report.failures`` has them all.
TOLD = 12


class ConformanceError(AssertionError):
    """An implementation does not conform; the message is the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A finding that makes a run fail, and where it was found."""

    implementation: str
    case: str
    finding: Finding

    @property
    def reproduce(self) -> str:
        """Command that runs this check of this case again."""
        return reproduce_line(self.implementation, self.case, self.finding.check)

    def __str__(self) -> str:
        return told(self.implementation, self.case, self.finding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the checks of a suite said of one implementation."""

    # As it is loaded and reproduced.
    implementation: str
    suite: str
    results: tuple[Result, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding, in the order of the cases."""
        return tuple(finding for result in self.results for finding in result.findings)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Findings that failed, each with its case and the command that reproduces it."""
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
        """Whether something was checked, and all of it held."""
        counts = self.counts
        held = counts["passed"] + counts["expected_failure"]
        return bool(held) and not any(counts[status] for status in FAILURES)

    def raise_if_failed(self) -> Self:
        """The report itself, if all held.

        Raises: ConformanceError, whose message is the report.
        """
        if not self.ok:
            raise ConformanceError(f"{shown(self.implementation)} does not conform\n{self}")
        return self

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def told(implementation: str, case: str, finding: Finding) -> str:
    """A finding in words: its fault, the requirement, and the command that runs it again."""
    known = checks().get(finding.check)
    requirement = known.requirement if known else finding.check
    fault = finding.reason.removeprefix(requirement).strip().removeprefix("But ")
    status = "" if finding.status == "failed" else f"{finding.status.replace('_', ' ')}: "
    return (
        f"{status}{fault}\n"
        f"  requirement  {requirement}\n"
        f"  reproduce    {reproduce_line(implementation, case, finding.check)}"
    )


def _lines(report: Report) -> Iterator[str]:
    """The report as the terminal tells it: counts by chapter, what failed, what was left out, and a verdict."""
    yield f"{shown(report.implementation)}: {_several(len(report.results), 'case')} of the suite {report.suite}"
    by_chapter: defaultdict[str, Counter[Status]] = defaultdict(Counter)
    for finding in report.findings:
        known = checks().get(finding.check)
        by_chapter[known.chapter if known else "?"][finding.status] += 1
    width = max(map(len, by_chapter), default=0)
    for chapter in (*chapters(), "?"):
        if chapter in by_chapter:
            yield f"  {chapter:{width}}  {_cells(by_chapter[chapter])}"
    yield LEGEND
    yield from _failure_lines(report)
    for status, words in (("unsupported", "refused"), ("not_run", "not run")):
        reasons = Counter(finding.reason for finding in report.findings if finding.status == status)
        for reason, count in reasons.most_common(1):
            others = len(reasons) - 1
            most = f", {count} of them" if others else ""
            more = f" (and {_several(others, 'more reason')})" if others else ""
            yield f"{words}: {_several(reasons.total(), 'finding')}{most}: {reason}{more}"
    counts = report.counts
    asked = counts.total() - counts["unsupported"] - counts["not_run"]
    failed = len(report.failures)
    if not asked:
        yield "nothing was checked"
    else:
        yield f"{failed} of {asked} findings failed" if failed else f"all {asked} findings held"


def _cells(counts: Counter[Status]) -> str:
    totals = ((sign, sum(counts[status] for status in statuses)) for sign, statuses in SIGNS)
    return "   ".join(f"{sign} {total}" for sign, total in totals if total)


def _failure_lines(report: Report) -> Iterator[str]:
    by_check: defaultdict[str, list[Failure]] = defaultdict(list)
    for failure in report.failures:
        by_check[failure.finding.check].append(failure)
    for check, found in list(by_check.items())[:TOLD]:
        others = f", and on {_several(len(found) - 1, 'more case')}" if len(found) > 1 else ""
        yield f"\n{check}: {found[0].finding.status}{others}"
        yield f"  {found[0].finding.reason}"
        yield f"  {found[0].reproduce}"
    if len(by_check) > TOLD:
        yield f"\n… and {_several(len(by_check) - TOLD, 'more check')} that failed"
    if by_check:
        yield ""


def _several(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
