"""The summary as a data frame: a row for each implementation and timed call, or for each that was only checked."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from attnbench.analysis.summary import Column, SpeedCell, Summary, SummaryRow, SummaryTable
from attnbench.report.columns import SUMMARY

__all__ = ["tabulate_summary"]


def tabulate_summary(summary: Summary) -> pd.DataFrame:
    """Return the rows of a summary; what has no time has no number in its columns."""
    rows = [
        _describe_subject(table, row) | _describe_call(table, row.subject, column, cell)
        for table in summary.tables
        for row in table.rows
        for column, cell in _list_cells(table, row)
    ]
    return pd.DataFrame(rows, columns=list(SUMMARY))


def _list_cells(table: SummaryTable, row: SummaryRow) -> Iterator[tuple[Column | None, SpeedCell]]:
    """Yield the cells of a row; one without a column if nothing was to be timed."""
    own = [column for column in table.columns if column in row.cells]
    yield from ((column, row.cells[column]) for column in own)
    if not own:
        yield None, SpeedCell()


def _describe_subject(table: SummaryTable, row: SummaryRow) -> dict[str, Any]:
    place, conformance = table.place, row.conformance
    return {
        "machine": place.machine,
        "device": place.device,
        "dtype": place.dtype,
        "threads": place.threads,
        "form": table.form,
        "implementation": row.subject,
        "conforms": conformance.verdict,
        "suite": conformance.suite,
        "checked": conformance.checked,
        "failed_checks": "; ".join(conformance.failed_checks),
    }


def _describe_call(table: SummaryTable, subject: str, column: Column | None, cell: SpeedCell) -> dict[str, Any]:
    answer = table.answers.get(column) if column else None
    chosen = answer is not None and answer.name == subject
    time, ratio = cell.time_ns, cell.ratio
    return {
        "pass": column.pass_ if column else "",
        "mode": column.mode if column else "",
        "queries": column.queries if column else None,
        "keys": column.keys if column else None,
        "case": column.case if column else "",
        "time_ns": time.value if time else None,
        "time_low_ns": time.low if time else None,
        "time_high_ns": time.high if time else None,
        "ratio": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "mark": cell.mark or "",
        "peak_bytes": cell.peak_bytes,
        "processes": cell.processes,
        "chosen": chosen,
        "regret": answer.regret if chosen and answer else None,
        "run": cell.run,
        "line": cell.line,
    }
