"""Tables of measured quantities: one row per implementation, one column per length."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from attnbench.report.numbers import format_bytes, format_digits, format_interval, format_ratio, format_thousands
from attnbench.report.series import Series
from attnbench.report.tables import INCONCLUSIVE, find_reference

__all__ = ["MEASURES", "Grid", "make_grids"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A quantity that the report tabulates: heading of its table, and the data frame and column that contain it."""

    title: str
    frame: str
    column: str


MEASURES = (
    Measure(title="Time of a call, ms", frame="timings", column="median_ns"),
    Measure(title="End to end, ms", frame="timings", column="end_to_end_ns"),
    Measure(title="Replay as a CUDA graph, ms", frame="timings", column="graph_ns"),
    Measure(title="Rate, Gflop/s", frame="timings", column="gflop_per_s"),
    Measure(title="Building and preparing, ms", frame="timings", column="build_ns"),
    Measure(title="First call, ms", frame="timings", column="first_call_ns"),
    Measure(title="Peak memory above the inputs, MiB", frame="memory", column="peak_bytes"),
    Measure(
        title="Workspace at the peak, neither output nor gradient, MiB",
        frame="memory",
        column="workspace_bytes",
    ),
    Measure(title="Saved for backward, MiB", frame="memory", column="saved_bytes"),
    Measure(title="Physical peak, MiB", frame="memory", column="physical_bytes"),
    Measure(title="Reserved on the device, MiB", frame="memory", column="reserved_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Table of one quantity in one pass: one row per implementation, one column per length.

    A cell is a tuple of lines: a number, and the explanations below this number.
    """

    title: str
    pass_: str
    lengths: tuple[int, ...]
    rows: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]


def make_grids(series: Series) -> list[Grid]:
    """Return the tables of a series: one for each measure and pass with at least one value."""
    frames = {"timings": series.timings, "memory": series.memory}
    made = []
    for measure in MEASURES:
        frame = frames[measure.frame]
        frame = frame[frame[measure.column].notna()]
        made += [_make_grid(measure, str(name), part) for name, part in frame.groupby("pass")]
    return made


def _make_grid(measure: Measure, name: str, part: pd.DataFrame) -> Grid:
    lengths = tuple(sorted(int(length) for length in part["length"].unique()))
    rows = []
    for implementation, own in part.groupby("implementation", sort=False):
        by_length: dict[int, Any] = {row["length"]: row for _, row in own.iterrows()}
        rows.append((str(implementation), tuple(_format_cell(measure, by_length.get(n)) for n in lengths)))
    title = measure.title
    if measure.column == "median_ns" and (part["measure"] == "device").any():
        title = "Time of a call on the device, ms"
    return Grid(title=title, pass_=name, lengths=lengths, rows=tuple(rows))


def _format_cell(measure: Measure, row: Any) -> tuple[str, ...]:
    """Return a number and the lines below it: interval and speed verdict, percentage of the ceiling, or exact bytes."""
    if row is None:
        return ("–",)
    value = row[measure.column]
    if measure.frame == "memory":
        if measure.column != "physical_bytes":
            return format_digits(value / 2**20), f"{format_thousands(int(value))} B"
        outside = row["outside_bytes"]
        lines = [] if pd.isna(outside) else [f"{format_bytes(outside)} outside the allocator"]
        return format_digits(value / 2**20), *lines
    if measure.column == "gflop_per_s":
        share = [] if pd.isna(row["share"]) else [f"{row['share'] * 100:.0f} % of the {row['bound']} ceiling"]
        # A rate is marked as inconclusive if it was computed from a time with an inconclusive speed verdict.
        return format_digits(value), *share, *([INCONCLUSIVE] if row["state"] == INCONCLUSIVE else [])
    if measure.column != "median_ns":
        return (format_digits(value / 1e6),)
    interval = format_interval(row["low_ns"] / 1e6, row["high_ns"] / 1e6)
    if row["device"] != "cpu" and row["measure"] == "wall":
        interval += ", end to end"
    if not row["state"] or row["implementation"] == find_reference(row["case"]):
        return format_digits(value / 1e6), interval
    if pd.isna(row["ratio"]):
        return format_digits(value / 1e6), interval, row["state"]
    ratio = f"{format_ratio(row['ratio'])} ({format_interval(row['ratio_low'], row['ratio_high'])})"
    return format_digits(value / 1e6), interval, ratio, row["state"]
