"""The tables of a report: the columns of each, its rows, and what a row is."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.analysis.answers import Answer
from attnbench.analysis.summary import Column, SpeedCell, Summary, SummaryRow, SummaryTable
from attnbench.records.types import PERF, Finding, Result
from attnbench.report import columns
from attnbench.report.columns import Columns, list_cells
from attnbench.report.content import Content
from attnbench.report.failures import FAILURES
from attnbench.report.growth import GROWTH, list_growth
from attnbench.report.maps import MAPS, list_map_rows
from attnbench.report.nodes import NODES

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TABLES", "Table", "make_frame"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of a report."""

    # What a row is, in the words of docs/formats.md.
    row: str
    columns: Columns
    list_rows: Callable[[Content], Iterable[Any]]
    # Whether a report has the table as a CSV file, and whether also without rows.
    in_report: bool = True
    always: bool = True


class _Found(NamedTuple):
    """A finding with its result."""

    result: Result
    finding: Finding


class _Shown(NamedTuple):
    """A cell of the summary; ``column`` is None for a subject that was only checked."""

    table: SummaryTable
    row: SummaryRow
    column: Column | None
    cell: SpeedCell
    # The answer of the column, if it is this subject.
    answer: Answer | None


def make_frame(columns: Columns, rows: Iterable[Any]) -> "pd.DataFrame":
    """Return a table of pandas; a missing number is NaN, and NA among whole numbers."""
    import pandas as pd

    cells = list(list_cells(columns, rows))
    frame = pd.DataFrame(cells, columns=[column.name for column in columns])
    for name, own in zip(list(frame), zip(*cells, strict=True), strict=False):
        known = [cell for cell in own if cell is not None]
        if len(known) < len(own) and not any(isinstance(cell, str) for cell in known):
            whole = known and all(isinstance(cell, int) for cell in known)
            frame[name] = frame[name].astype("Int64" if whole else float)
    return frame


def _list_findings(content: Content) -> Iterator[_Found]:
    """Yield the findings; of a large report, which has millions, those that passed without a warning are left out."""
    for result in content.results:
        for finding in result.findings:
            if not content.compact or finding.status != "passed" or finding.warnings:
                yield _Found(result, finding)


def _list_summary(summary: Summary) -> Iterator[_Shown]:
    for table in summary.tables:
        for row in table.rows:
            timed: list[tuple[Column | None, SpeedCell]] = [
                (column, row.cells[column]) for column in table.columns if column in row.cells
            ]
            for column, cell in timed or [(None, SpeedCell())]:
                answer = table.answers.get(column) if column else None
                own = answer if answer and answer.name == row.subject else None
                yield _Shown(table, row, column, cell, own)


TABLES = {
    "summary": Table(
        row="a cell of the table that the terminal shows; only from Python",
        columns=columns.SUMMARY,
        list_rows=lambda content: _list_summary(content.summary),
        in_report=False,
    ),
    "decisions": Table(
        row="a place, form, length, mode and pass",
        columns=columns.DECISIONS,
        list_rows=lambda content: content.summary.decisions,
    ),
    "timings": Table(
        row="an implementation and a case that was timed. Times are in nanoseconds",
        columns=columns.TIMINGS,
        list_rows=lambda content: content.summary.timings,
    ),
    "memory": Table(
        row="an implementation and a case whose memory was measured",
        columns=columns.MEMORY,
        list_rows=lambda content: [one for one in content.results if one.memory is not None],
    ),
    "findings": Table(row="a finding", columns=columns.FINDINGS, list_rows=_list_findings),
    "failures": Table(row="a group of failures", columns=FAILURES, list_rows=lambda content: content.failures.groups),
    "untimed": Table(
        row="an implementation and a case that was not timed; only from Python",
        columns=columns.UNTIMED,
        list_rows=lambda content: [one for one in content.results if one.suite == PERF and one.timing is None],
        in_report=False,
    ),
    "kernels": Table(
        row="an implementation and a case whose kernels were recorded",
        columns=columns.KERNELS,
        list_rows=lambda content: [one for one in content.results if one.kernels],
    ),
    "growth": Table(
        row="a fitted exponent", columns=GROWTH, list_rows=lambda content: list_growth(content.summary.tables)
    ),
    "ceilings": Table(row="a measured ceiling", columns=columns.CEILINGS, list_rows=lambda content: content.ceilings),
    "maps": Table(
        row="a cell of a map", columns=MAPS, list_rows=lambda content: list_map_rows(content.maps), always=False
    ),
    "nodes": Table(
        row="a call on which two nodes of one kind disagree",
        columns=NODES,
        list_rows=lambda content: content.nodes.rows,
        always=False,
    ),
    "left-out": Table(
        row="a part of a run file that was left out",
        columns=columns.EXCLUSIONS,
        list_rows=lambda content: content.summary.exclusions,
        always=False,
    ),
}
