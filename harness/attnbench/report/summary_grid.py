"""A table of the summary as texts, before terminal or Markdown lay it out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from attnbench.analysis.plain_names import clean_name
from attnbench.analysis.summary import Column, Mark, SpeedCell, Summary, SummaryRow, SummaryTable, Verdict
from attnbench.records.facts import Reason
from attnbench.report.case_forms import describe_form, describe_pass
from attnbench.report.numbers import format_bytes, format_seconds
from attnbench.words import completeness as run_words
from attnbench.words import summary as words
from attnbench.words.exclusions import count_exclusions
from attnbench.words.say import say

__all__ = [
    "Cell", "Grid", "Group", "Line", "find_peak_column", "format_ratio", "list_answers", "list_gaps",
    "list_unmeasured", "make_grid", "name_pass", "name_wrong",
]  # fmt: skip

# What stands in a cell without a number.
NOTHING = "–"
# Most reasons why cases were not checked, and why calls were not timed.
MOST_REASONS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A time, a ratio with its mark, or a size; ``mark`` chooses the colour."""

    text: str = NOTHING
    mark: Mark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The columns of one pass, or the column of the memory; ``headings`` are the lengths."""

    label: str
    headings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of the table."""

    subject: str
    verdict: Verdict
    # The verdict in words: with the cause of failures, and without it where the row has times.
    conforms: str
    conforms_briefly: str
    # The cells of each group; empty if nothing was timed.
    cells: tuple[tuple[Cell, ...], ...] = ()

    @property
    def is_timed(self) -> bool:
        """Whether the row has numbers."""
        return bool(self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table as texts."""

    title: str
    groups: tuple[Group, ...]
    lines: tuple[Line, ...]
    legend: str


def make_grid(table: SummaryTable) -> Grid:
    """Return the texts of a table."""
    passes = [(name, list(own)) for name, own in groupby(table.columns, key=name_pass)] if is_timed(table) else []
    peak = find_peak_column(table, table.columns) if passes else None
    groups = [Group(label=name, headings=tuple(column.length for column in own)) for name, own in passes]
    if peak:
        groups.append(Group(label="peak", headings=(peak.length,)))
    lines = []
    for row in table.rows:
        cells = [tuple(_format_cell(row.cells.get(column)) for column in own) for _, own in passes]
        if peak:
            cells.append((_format_peak(row.cells.get(peak)),))
        timed = any(cell.time_ns is not None for cell in row.cells.values())
        lines.append(
            Line(
                subject=clean_name(row.subject),
                verdict=row.conformance.verdict,
                conforms=words.describe_conformance(row.conformance),
                conforms_briefly=words.describe_conformance_briefly(row.conformance),
                cells=tuple(cells) if timed else (),
            )
        )
    shown = [cell for row in table.rows for cell in row.cells.values() if cell.time_ns]
    return Grid(
        title=_make_title(table),
        groups=tuple(groups),
        lines=tuple(lines),
        legend=words.explain_marks(
            {cell.mark for cell in shown if cell.mark},
            fixed=any(cell.fixed_values for cell in shown),
            declared={row.subject: row.conformance.expected for row in table.rows if row.conformance.expected},
        ),
    )


def is_timed(table: SummaryTable) -> bool:
    """Whether any call of a table was timed; if not, it has no columns."""
    return any(cell.time_ns is not None for row in table.rows for cell in row.cells.values())


def list_answers(table: SummaryTable) -> Iterator[str]:
    """Yield what to use for each pass."""
    for name, own in groupby(table.columns if is_timed(table) else (), key=name_pass):
        yield words.describe_answers(name, [(column.length, table.answers.get(column)) for column in own])


def list_unmeasured(table: SummaryTable) -> Iterator[str]:
    """Yield what was not checked or timed and why, and what was not reached; failures are told elsewhere.

    Refusals are told where they leave fewer cases than a verdict needs.
    """
    rows = [(row.subject, row.conformance) for row in table.rows]
    refused = _group_subjects((subject, one.refused) for subject, one in rows if one.verdict == "only")
    yield from (words.describe_refused(names, why) for why, names in refused)
    not_run = _group_subjects((subject, one.not_run) for subject, one in rows)
    yield from (words.describe_unchecked(names, why) for why, names in not_run)
    calls: dict[Reason | None, dict[str, int]] = {}
    for row in table.rows:
        if row.conformance.verdict not in ("no", "refused"):
            for reason, count in _count_untimed(row):
                calls.setdefault(reason, {})[row.subject] = count
    untimed = sorted(calls.items(), key=lambda one: (one[0] is None, -len(one[1])))
    yield from (words.describe_untimed(names, reason) for reason, names in untimed[:MOST_REASONS])


def list_gaps(summary: Summary) -> Iterator[str]:
    """Yield what the runs lack, what was left out, and where places disagree."""
    for found in summary.incomplete:
        yield from run_words.describe_gaps(found, named=summary.runs > 1)
    if summary.exclusions:
        yield say(words.LEFT_OUT, things=count_exclusions(summary.exclusions))
    for one in summary.disagreements:
        yield words.describe_disagreement(name_pass(one.column), one.column.length, one.names)


def name_wrong(summary: Summary) -> str:
    """Return in a sentence which implementations failed checks, at any place."""
    rows = {}
    for table in summary.tables:
        for row in table.rows:
            if row.subject not in rows or row.conformance.verdict == "no":
                rows[row.subject] = row.conformance
    return words.describe_wrong(rows)


def name_pass(column: Column) -> str:
    """Return the name of the pass of a column, with the mode where the pass does not imply it."""
    return describe_pass(column.pass_, column.mode)


def _group_subjects(
    counted: Iterable[tuple[str, Sequence[tuple[Reason, int]]]],
) -> list[tuple[Reason, dict[str, int]]]:
    """Return the reasons of most subjects, each with its subjects and their numbers of cases.

    Each subject stands at its first reason, with its cases of all reasons.
    """
    groups: dict[Reason, dict[str, int]] = {}
    for subject, reasons in counted:
        if reasons:
            groups.setdefault(reasons[0][0], {})[subject] = sum(count for _, count in reasons)
    return sorted(groups.items(), key=lambda one: -len(one[1]))[:MOST_REASONS]


def _count_untimed(row: SummaryRow) -> Iterator[tuple[Reason | None, int]]:
    """Yield the reasons why calls of a row have no time; None, the last: not reached."""
    counts: dict[Reason | None, int] = {}
    for cell in row.cells.values():
        if cell.time_ns is None and (cell.pending or cell.untimed is not None):
            counts[cell.untimed] = counts.get(cell.untimed, 0) + 1
    yield from sorted(counts.items(), key=lambda one: (one[0] is None, -one[1]))


def _make_title(table: SummaryTable) -> str:
    parts = [words.describe_place(table.place)]
    if table.columns:
        parts.append(clean_name(describe_form(table.form), 200))
    if table.baseline and any(cell.ratio for row in table.rows for cell in row.cells.values()):
        parts.append(say(words.PER_REFERENCE, baseline=clean_name(table.baseline)))
    return " · ".join(parts)


def find_peak_column(table: SummaryTable, columns: Sequence[Column]) -> Column | None:
    """Return the last of these calls whose peak memory is known, which is the longest of the last such pass."""
    having = [one for one in columns if any(r.cells[one].peak_bytes for r in table.rows if one in r.cells)]
    return having[-1] if having else None


def _format_cell(cell: SpeedCell | None) -> Cell:
    if cell is None or cell.time_ns is None:
        return Cell()
    fixed = words.FIXED * cell.fixed_values
    if cell.ratio is None or cell.mark in (None, "baseline"):
        sign = f" {words.MARKS[cell.mark][0]}" if cell.mark in words.MARKS else ""
        return Cell(text=f"{format_seconds(cell.time_ns.value / 1e9)}{fixed}{sign}", mark=cell.mark)
    return Cell(text=f"{format_ratio(cell.ratio.value)}{fixed} {words.MARKS[cell.mark][0]}", mark=cell.mark)


def format_ratio(ratio: float) -> str:
    """Format a ratio of times: two decimals below 10, and at least three digits above."""
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.1f}" if ratio < 99.95 else f"{ratio:.0f}"


def _format_peak(cell: SpeedCell | None) -> Cell:
    return Cell() if cell is None or cell.peak_bytes is None else Cell(text=format_bytes(cell.peak_bytes))
