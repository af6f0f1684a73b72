"""Growth of time and memory with length: the exponent of a power law, with its confidence interval."""

import math
import statistics
from collections.abc import Iterable, Sequence

import pandas as pd

from attnbench.analysis.stats import Interval, student_quantile
from attnbench.analysis.summary import SpeedCell, SummaryTable
from attnbench.report.columns import GROWTH
from attnbench.report.figures.points import Panel, Point, list_panels, measure_peak, measure_time
from attnbench.words.summary import describe_place

__all__ = ["LEVEL", "fit_growth", "tabulate_growth"]

LEVEL = 0.95
# Smallest number of lengths for a fit. Each side of the interval is the standard error times a quantile of Student's t:
# 12.7 with three lengths, 4.3 with four and 3.2 with five.
FEWEST = 5


def fit_growth(lengths: Sequence[float], values: Sequence[float]) -> Interval | None:
    """Fit a power law a·Lᵖ of the length L to ``values``; return the exponent p with a confidence interval.

    Return None for fewer than five different lengths, or if a length or a value is not positive.

    The 95 % confidence interval uses Student's t and the residuals of the fit. A curve that is no power law, such as a
    sum of a linear and a quadratic part, therefore has a wide interval even if its points are exact.
    """
    if len(lengths) < FEWEST or len(set(lengths)) < FEWEST or min(lengths) <= 0 or min(values) <= 0:
        return None
    x, y = [math.log(length) for length in lengths], [math.log(value) for value in values]
    slope, intercept = statistics.linear_regression(x, y)
    free = len(x) - 2
    spread = sum((one - statistics.fmean(x)) ** 2 for one in x)
    off = sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    half = student_quantile((1 - LEVEL) / 2, free) * math.sqrt(off / free / spread)
    return Interval(value=slope, low=slope - half, high=slope + half)


def tabulate_growth(tables: Iterable[SummaryTable]) -> pd.DataFrame:
    """Return the rows of growth.csv: exponents of time and of peak memory, for each implementation and pass.

    Times of disturbed calls, and those whose comparison is inconclusive, are left out.
    """
    rows = [
        _make_row(table, panel, name, measure, fitted, [point.length for point in points])
        for table in tables
        for measure, read in (("time", _measure_undisturbed), ("peak memory", measure_peak))
        for panel in list_panels(table, read)
        for name, points in panel.curves.items()
        if (fitted := fit_growth([point.length for point in points], [point.value for point in points]))
    ]
    return pd.DataFrame(rows, columns=list(GROWTH))


def _measure_undisturbed(cell: SpeedCell) -> Point | None:
    point = measure_time(cell)
    return None if point is None or point.disturbed else point


def _make_row(
    table: SummaryTable, panel: Panel, name: str, measure: str, found: Interval, lengths: Sequence[int]
) -> dict[str, object]:
    place = table.place
    return {
        "implementation": name,
        "pass": panel.title,
        "measure": measure,
        "dtype": place.dtype,
        "device": place.device,
        "exponent": found.value,
        "low": found.low,
        "high": found.high,
        "level": LEVEL,
        "lengths": len(lengths),
        "shortest": min(lengths),
        "longest": max(lengths),
        "series": f"{describe_place(place)}: {table.form}",
    }
