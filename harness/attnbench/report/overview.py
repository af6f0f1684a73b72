"""The first screen: who is wrong, what to use and what is missing, and a table with a row for each implementation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from attnbench.analysis.summary import Column, SpeedCell, Summary, SummaryRow, SummaryTable
from attnbench.report.case_forms import describe_form
from attnbench.report.failures import Failures
from attnbench.report.numbers import format_bytes, format_estimate, format_seconds, shorten_text
from attnbench.report.slugs import make_slug
from attnbench.report.summary_grid import (
    find_peak_column,
    format_ratio,
    list_answers,
    list_gaps,
    make_grid,
    name_pass,
    name_wrong,
)
from attnbench.words.answers import NOTHING_CHOSEN, describe_regret, format_percent
from attnbench.words.say import say
from attnbench.words.summary import (
    MARKS,
    PENDING,
    describe_conformance,
    describe_place,
    describe_reason,
)

__all__ = ["Overview", "OverviewRow", "OverviewTable", "Shown", "make_overview", "name_measure"]

# Most tables, and most columns and rows of one, on the first screen; the tables of measures have more.
MOST_TABLES, MOST_COLUMNS, MOST_ROWS = 12, 24, 60
# Longest cause and longest reason in a cell, in characters, and the fewest columns with room for it.
LONGEST, ROOM = 60, 3
# Ratios from which on a cell has a stronger colour, on both sides of 1.
SHADES = (1.1, 1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A cell: its text, the sign beside it, its shade, and where the evidence is on the page."""

    text: str
    sign: str = ""
    # "faster" or "slower" with a number from 1 to 3; empty where no difference is decided.
    shade: str = ""
    # The whole number with its interval, or the whole reason.
    title: str = ""
    link: str = ""
    # Whether it is what to use.
    chosen: bool = False
    span: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewRow:
    """A subject with its verdict, a cell for each column, and its peak memory."""

    name: str
    verdict: str
    conformance: Shown
    cells: tuple[Shown, ...]
    peak: Shown | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewTable:
    """The table of one place and form."""

    anchor: str
    place: str
    form: str
    baseline: str
    # The passes, each with the names of its lengths.
    passes: tuple[tuple[str, tuple[str, ...]], ...]
    rows: tuple[OverviewRow, ...]
    # What to use in each column, and its bound; empty if nothing was timed.
    answers: tuple[Shown, ...]
    # The length whose peak memory the last column has; empty without it.
    peak_at: str
    # What to use for each pass, in words, and what the marks of the table mean.
    told: tuple[str, ...]
    legend: str
    # Whether the answers are among implementations that are known to conform.
    conforming: bool
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The first screen."""

    # Who is wrong, and whether anyone is.
    wrong: str
    is_wrong: bool
    # What is missing.
    missing: tuple[str, ...]
    # For how many calls places disagree on what to use.
    disagreements: int
    # The commands that complete the runs.
    commands: tuple[str, ...]
    tables: tuple[OverviewTable, ...]
    left_out: int


def make_overview(summary: Summary, failures: Failures) -> Overview:
    """Return the first screen of a report."""
    tables = summary.tables
    return Overview(
        wrong=_capitalize(name_wrong(summary)),
        is_wrong=any(row.conformance.verdict == "no" for table in tables for row in table.rows),
        missing=tuple(list_gaps(replace(summary, disagreements=()))),
        disagreements=len(summary.disagreements),
        commands=tuple(dict.fromkeys(one.resuming for one in summary.incomplete if one.resuming)),
        tables=tuple(_make_table(one, failures) for one in tables[:MOST_TABLES]),
        left_out=max(0, len(tables) - MOST_TABLES),
    )


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _make_table(table: SummaryTable, failures: Failures) -> OverviewTable:
    columns = table.columns[:MOST_COLUMNS]
    peak = find_peak_column(table, columns)
    rows = [_make_row(table, row, columns, peak, failures) for row in _select_rows(table)]
    passes = groupby(columns, key=name_pass)
    return OverviewTable(
        anchor=make_slug("table", *map(str, table.place), table.form),
        place=describe_place(table.place),
        form=describe_form(table.form) if table.form else "",
        baseline=table.baseline,
        passes=tuple((name, tuple(column.length for column in own)) for name, own in passes),
        rows=tuple(rows),
        answers=tuple(_show_answer(table, column) for column in columns) if table.answers else (),
        peak_at=peak.length if peak else "",
        told=tuple(map(_capitalize, list_answers(table))),
        legend=make_grid(table).legend,
        conforming=table.conforming,
        left_out=len(table.rows) - len(rows),
    )


def _select_rows(table: SummaryTable) -> Sequence[SummaryRow]:
    """Return the rows of the table; of too many, those that fail a check and the fastest are kept."""
    if len(table.rows) <= MOST_ROWS:
        return table.rows
    wrong = [row for row in table.rows if row.conformance.verdict == "no"][: MOST_ROWS // 2]
    names = {row.subject for row in wrong}
    others = [row for row in table.rows if row.subject not in names][: MOST_ROWS - len(wrong)]
    names |= {row.subject for row in others}
    return [row for row in table.rows if row.subject in names]


def _make_row(
    table: SummaryTable, row: SummaryRow, columns: Sequence[Column], peak: Column | None, failures: Failures
) -> OverviewRow:
    cells = {column: row.cells.get(column, SpeedCell()) for column in columns}
    last = cells[peak].peak_bytes if peak else None
    conformance = _show_conformance(table, row, failures)
    shown = tuple(_show_cells(table, row, cells))
    if row.conformance.verdict == "refused" and not any(cell.time_ns for cell in cells.values()):
        # The refusal says why nothing was timed either.
        conformance, shown = replace(conformance, span=1 + len(columns)), ()
    return OverviewRow(
        name=row.subject,
        verdict=row.conformance.verdict,
        conformance=conformance,
        cells=shown,
        peak=Shown(text=format_bytes(last) if last is not None else "–") if peak else None,
    )


def _show_conformance(table: SummaryTable, row: SummaryRow, failures: Failures) -> Shown:
    place = table.place
    labels = (place.machine, f"{place.machine}, {place.device}")
    anchor = next((own for label in labels if (own := failures.headings.get((label, row.subject)))), "failures")
    return Shown(
        text=describe_conformance(row.conformance),
        link=anchor if row.conformance.verdict == "no" else "conformance",
    )


def _show_cells(table: SummaryTable, row: SummaryRow, cells: Mapping[Column, SpeedCell]) -> Iterator[Shown]:
    """Yield the cells of a row; neighbours without a time for the same reason are one cell."""
    for why, group in groupby(cells.items(), key=lambda item: _explain_untimed(item[1])):
        own = list(group)
        if why is not None:
            # A narrow cell has no room for a reason.
            text = shorten_text(why, LONGEST) if why and len(own) >= ROOM else "–"
            yield Shown(text=text, title=why if text != why else "", link="untimed", span=len(own))
            continue
        yield from (_show_time(table, row.subject, column, cell) for column, cell in own)


def _explain_untimed(cell: SpeedCell) -> str | None:
    """Return why a call has no time, which is empty if it was not planned; None if it has one."""
    if cell.time_ns is not None:
        return None
    return say(PENDING) if cell.pending else describe_reason(cell.untimed) if cell.untimed else ""


def _show_time(table: SummaryTable, name: str, column: Column, cell: SpeedCell) -> Shown:
    time, ratio = cell.time_ns, cell.ratio
    assert time is not None
    answer = table.answers.get(column)
    chosen, link = answer is not None and answer.name == name, name_measure(cell.run, name, column.case)
    told = format_estimate(time.value / 1e6, time.low / 1e6, time.high / 1e6, time.processes, unit=" ms")
    if ratio is None or cell.mark in (None, "baseline"):
        return Shown(text=format_seconds(time.value / 1e9), title=told, link=link, chosen=chosen)
    shown = format_estimate(ratio.value, ratio.low, ratio.high, ratio.processes)
    return Shown(
        text=format_ratio(ratio.value),
        sign=MARKS[cell.mark][0],
        shade=_choose_shade(cell.mark, ratio.value),
        title=f"{shown} × {table.baseline}; {told}",
        link=link,
        chosen=chosen,
    )


def _choose_shade(mark: str, ratio: float) -> str:
    """Return the class of a decided difference; the shade grows with the factor."""
    if mark not in ("faster", "slower"):
        return ""
    factor = max(ratio, 1 / ratio)
    return f"{mark}-{1 + sum(factor >= step for step in SHADES)}"


def _show_answer(table: SummaryTable, column: Column) -> Shown:
    answer = table.answers.get(column)
    if answer is None:
        return Shown(text="–", title=say(NOTHING_CHOSEN))
    bound = f"≤ {format_percent(answer.regret)}" if answer.regret is not None else "?"
    return Shown(text=answer.name, sign=bound, title=describe_regret(answer.regret, answer.unbounded), chosen=True)


def name_measure(run: str, name: str, case: str) -> str:
    """Return the anchor of a timed call in the tables of measures."""
    return make_slug("m", run, name, case)
