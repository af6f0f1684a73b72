"""What the curves of a report show, as typed points: ratio, time and peak memory of each call against its length."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from attnbench.analysis.summary import Column, SpeedCell, SummaryTable
from attnbench.report.hidden_characters import spell_out
from attnbench.report.summary_grid import name_pass
from attnbench.words.figures import name_panel

__all__ = ["Panel", "Point", "list_panels", "measure_peak", "measure_ratio", "measure_time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value at a length, with its interval; ``disturbed``: other work disturbed the call."""

    length: int
    value: float
    low: float
    high: float
    disturbed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The curves of one pass, by implementation, in the order of the table."""

    title: str
    curves: Mapping[str, tuple[Point, ...]]

    @property
    def points(self) -> list[Point]:
        """All points of the panel."""
        return [point for curve in self.curves.values() for point in curve]


Measure = Callable[[SpeedCell], Point | None]


def list_panels(table: SummaryTable, measure: Measure) -> Iterator[Panel]:
    """Yield a panel for each pass, mode and number of queries that differs from that of the keys, if it has points."""
    groups: dict[str, list[Column]] = {}
    for column in table.columns:
        queries = column.queries if column.keys and column.queries != column.keys else 0
        groups.setdefault(spell_out(name_panel(name_pass(column), queries)), []).append(column)
    for title, columns in groups.items():
        curves = {row.subject: _list_points(row.cells, columns, measure) for row in table.rows}
        if kept := {name: points for name, points in curves.items() if points}:
            yield Panel(title=title, curves=kept)


def _list_points(cells: Mapping[Column, SpeedCell], columns: list[Column], measure: Measure) -> tuple[Point, ...]:
    found = {}
    for column in columns:
        point = measure(cells[column]) if column in cells else None
        if point and 0 < point.value < float("inf"):
            length = max(column.queries, column.keys)
            found[length] = Point(
                length=length, value=point.value, low=_bound(point.low, point.value),
                high=_bound(point.high, point.value), disturbed=point.disturbed,
            )  # fmt: skip
    return tuple(found[length] for length in sorted(found) if length > 0)


def _bound(end: float, value: float) -> float:
    """Return an end of an interval; the value where the end cannot be drawn."""
    return end if 0 < end < float("inf") else value


def measure_time(cell: SpeedCell) -> Point | None:
    """Return the time of a call, in nanoseconds."""
    time = cell.time_ns
    if time is None:
        return None
    return Point(length=0, value=time.value, low=time.low, high=time.high, disturbed=cell.state == "inconclusive")


def measure_ratio(cell: SpeedCell) -> Point | None:
    """Return the time of a call over the baseline's; None for the baseline, and where calls were disturbed."""
    if cell.ratio is None or cell.state == "inconclusive" or cell.mark == "baseline":
        return None
    return Point(length=0, value=cell.ratio.value, low=cell.ratio.low, high=cell.ratio.high)


def measure_peak(cell: SpeedCell) -> Point | None:
    """Return the peak memory of a call, in bytes."""
    if cell.peak_bytes is None:
        return None
    return Point(length=0, value=cell.peak_bytes, low=cell.peak_bytes, high=cell.peak_bytes)
