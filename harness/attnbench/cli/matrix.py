"""Findings by chapter (group of checks) and implementation: counts, and the largest error ratio.

The counts are by status. An error ratio is a measured error over the error that is allowed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from attnbench.checks.catalogue import list_chapters, read_checks
from attnbench.records.types import Finding, Result
from attnbench.report.console import Console, Part, Text, count_cells
from attnbench.report.text_table import TextTable, print_tables
from attnbench.words.statuses import MARKS, StatusMark, describe_mark, find_mark

__all__ = ["print_chapters"]

# Styles of the marks, by name.
STYLES = {"bad": "bold red", "good": "green", "known": "yellow", "refused": "dim", "left": "dim"}
LEGEND = "   ".join((*(f"{mark.sign} {describe_mark(mark)}" for mark in MARKS), "(largest error / allowed)"))


@dataclass(slots=True)
class ChapterTally:
    """Findings of one implementation in one chapter: counts by mark of the status, largest error ratio."""

    counts: Counter[StatusMark] = field(default_factory=Counter)
    # Largest ratio of a measured error to the allowed error; None where no finding has both.
    worst: float | None = None

    def add(self, finding: Finding) -> None:
        """Count a finding, and update the largest error ratio."""
        self.counts[find_mark(finding.status)] += 1
        # Leave out an expected failure: its error may exceed its budget, and would hide how close
        # the other findings are to their budgets.
        if finding.status == "expected_failure" or finding.measured is None or not finding.allowed:
            return
        share = finding.measured / finding.allowed
        if share == share:  # not NaN
            self.worst = share if self.worst is None else max(self.worst, share)

    @property
    def ratio(self) -> str:
        """The largest error ratio in parentheses; an empty text if it is unknown."""
        if self.worst is None:
            return ""
        return f"({self.worst:.2f})" if self.worst < 100 else "(>100)"


# Cells by chapter and implementation; chapters are in the order of the catalogue of checks.
Matrix = dict[str, dict[str, ChapterTally]]


def build_matrix(results: Iterable[Result]) -> Matrix:
    """Return the cells of a run by chapter and implementation.

    The chapter ``?`` has the findings of checks that this version of attnbench does not know.
    """
    cells: defaultdict[str, dict[str, ChapterTally]] = defaultdict(dict)
    for result in results:
        for finding in result.findings:
            known = read_checks().get(finding.check)
            row = cells[known.chapter if known else "?"]
            row.setdefault(result.implementation, ChapterTally()).add(finding)
    return {chapter: cells[chapter] for chapter in (*list_chapters(), "?") if chapter in cells}


def print_chapters(results: Iterable[Result], *, err: bool = False) -> None:
    """Print the findings by chapter and implementation, in as many tables as the width of the terminal needs."""
    stored = list(results)
    cells = build_matrix(stored)
    names = list(dict.fromkeys(result.implementation for result in stored))
    out = Console.of(err=err)
    for some in _split_columns(cells, names, out.width):
        rows: list[tuple[Text, ...]] = [
            (chapter, *(_format_cell(row.get(name)) for name in some)) for chapter, row in cells.items()
        ]
        print_tables([TextTable(head=("chapter", *some), rows=tuple(rows))], out)
        out.print()
    out.print_wrapped(LEGEND, "dim")
    out.print()


def _split_columns(cells: Matrix, names: Sequence[str], width: int) -> Iterator[list[str]]:
    """Yield groups of implementation names; the columns of two or more names fit in ``width`` characters."""
    left = max(map(len, ("chapter", *cells)))
    some: list[str] = []
    used = left
    for name in names:
        needs = 2 + max(len(name), *(_count(_format_cell(row.get(name))) for row in cells.values()), 0)
        if some and used + needs > width:
            yield some
            some, used = [], left
        some.append(name)
        used += needs
    if some or not names:
        yield some


def _format_cell(cell: ChapterTally | None) -> tuple[Part, ...]:
    if cell is None:
        return ()
    marks = [(f"{mark.sign} {cell.counts[mark]}", STYLES.get(mark.name, "")) for mark in MARKS if mark in cell.counts]
    ratio = [(cell.ratio, "dim")] if cell.ratio else []
    return tuple(Part(" " * bool(place) + text, style) for place, (text, style) in enumerate((*marks, *ratio)))


def _count(cell: Sequence[Part]) -> int:
    return sum(count_cells(part.text) for part in cell)
