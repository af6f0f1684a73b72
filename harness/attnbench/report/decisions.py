"""The rows of decisions.csv: what to use for each timed call, with its bound."""

from collections.abc import Iterator

import pandas as pd

from attnbench.analysis.summary import Decision, Summary

__all__ = ["tabulate_decisions"]

COLUMNS = (
    "machine", "device", "dtype", "threads", "form", "queries", "keys", "mode", "pass", "baseline", "use", "regret",
    "unbounded", "behind", "processes", "ratio", "ratio_low", "ratio_high", "peak_bytes",
)  # fmt: skip


def tabulate_decisions(summary: Summary) -> pd.DataFrame:
    """Return the rows of decisions.csv."""
    rows = [dict(_list_columns(one)) for one in summary.decisions]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"processes": "Int64", "peak_bytes": "Int64"})


def _list_columns(one: Decision) -> Iterator[tuple[str, object]]:
    place, column, answer = one.table.place, one.column, one.answer
    yield from (("machine", place.machine), ("device", place.device), ("dtype", place.dtype))
    yield from (("threads", place.threads), ("form", one.table.form), ("queries", column.queries))
    yield from (("keys", column.keys), ("mode", column.mode), ("pass", column.pass_), ("baseline", one.table.baseline))
    if answer is None:
        return
    yield from (("use", answer.name), ("regret", answer.regret), ("unbounded", answer.unbounded or ""))
    yield from (("behind", answer.behind), ("processes", answer.processes))
    if (cell := one.chosen) is None:
        return
    yield "peak_bytes", cell.peak_bytes
    if cell.ratio:
        yield from (("ratio", cell.ratio.value), ("ratio_low", cell.ratio.low), ("ratio_high", cell.ratio.high))
