"""What came out, chapter by chapter: counts by status and the largest error as a share of what was allowed."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from attnbench.checks.catalogue import chapters, checks
from attnbench.records.types import FAILURES, Finding, Result, Status, reproduce_line

__all__ = ["LEGEND", "Cell", "Failure", "Matrix", "failures", "matrix"]

SIGNS: tuple[tuple[str, str, tuple[Status, ...]], ...] = (
    ("✗", "failed", tuple(sorted(FAILURES))),
    ("✓", "passed", ("passed",)),
    ("~", "expected to fail", ("expected_failure",)),
    ("–", "refused, with a reason", ("unsupported",)),
    ("·", "not run", ("not_run",)),
)
LEGEND = "   ".join((*(f"{sign} {words}" for sign, words, _ in SIGNS), "(largest error / allowed)"))


@dataclass(slots=True)
class Cell:
    """One implementation in one chapter."""

    counts: Counter[Status] = field(default_factory=Counter)
    # Largest measured error as a share of the error allowed, where anything was allowed.
    worst: float | None = None

    def add(self, finding: Finding) -> None:
        """Count a finding."""
        self.counts[finding.status] += 1
        # A failure that is expected says nothing of how close the rest is.
        if finding.status == "expected_failure" or finding.measured is None or not finding.allowed:
            return
        share = finding.measured / finding.allowed
        if share == share:  # not NaN
            self.worst = share if self.worst is None else max(self.worst, share)

    def marks(self) -> Iterator[tuple[str, int]]:
        """Sign and number of every status that there is."""
        for sign, _, statuses in SIGNS:
            if count := sum(self.counts[status] for status in statuses):
                yield sign, count

    @property
    def ratio(self) -> str:
        """The largest share in words, or nothing."""
        if self.worst is None:
            return ""
        return f"({self.worst:.2f})" if self.worst < 100 else "(>100)"


# Cells by chapter and implementation, in the order of the chapters.
Matrix = dict[str, dict[str, Cell]]


def matrix(results: Iterable[Result]) -> Matrix:
    """Cells of a run; a check that this version does not know stands under ``?``."""
    cells: defaultdict[str, dict[str, Cell]] = defaultdict(dict)
    for result in results:
        for finding in result.findings:
            known = checks().get(finding.check)
            row = cells[known.chapter if known else "?"]
            row.setdefault(result.implementation, Cell()).add(finding)
    return {chapter: cells[chapter] for chapter in (*chapters(), "?") if chapter in cells}


@dataclass(frozen=True, slots=True)
class Failure:
    """Failures of one check on one implementation: the first, and on how many cases more."""

    implementation: str
    case: str
    finding: Finding
    others: int

    @property
    def title(self) -> str:
        """What failed, and how."""
        more = f", and on {self.others} more case{'s' * (self.others > 1)}" if self.others else ""
        return f"{self.implementation}  {self.finding.check}: {self.finding.status}{more}"

    @property
    def reproduce(self) -> str:
        """Command that shows the first one again."""
        return reproduce_line(self.implementation, self.case, self.finding.check)


def failures(results: Iterable[Result]) -> list[Failure]:
    """Failures by implementation and check."""
    found: defaultdict[tuple[str, str], list[tuple[Result, Finding]]] = defaultdict(list)
    for result in results:
        for finding in result.findings:
            if finding.status in FAILURES:
                found[result.implementation, finding.check].append((result, finding))
    return [Failure(name, of[0][0].case, of[0][1], len(of) - 1) for (name, _), of in found.items()]
