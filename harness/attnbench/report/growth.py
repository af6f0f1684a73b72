"""Growth of time and memory with length: the exponent of a power law, with its confidence interval."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

__all__ = ["GROWTH", "LEVEL", "Growth", "fit_growth", "fit_growths"]

LEVEL = 0.95
# Two-sided 95 % quantiles of Student's t distribution with 1 to 20 degrees of freedom. For more degrees of freedom, the
# last quantile is used, which makes the confidence interval a little too wide.
# Source: https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
# Smallest number of lengths for a fit. Each side of the interval is the standard error times a quantile of Student's t:
# 12.7 with three lengths, 4.3 with four and 3.2 with five.
FEWEST = 5
GROWTH = (
    "implementation", "pass", "measure", "dtype", "device", "exponent", "low", "high", "level", "lengths", "shortest",
    "longest",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Exponent p of a power law a·Lᵖ in the length L, fitted by least squares on logarithms, with its interval."""

    exponent: float
    low: float
    high: float


def fit_growth(lengths: Sequence[float], values: Sequence[float]) -> Growth | None:
    """Fit a power law of the length to ``values``, and return its exponent with a confidence interval.

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
    half = STUDENT_T[min(free, len(STUDENT_T)) - 1] * math.sqrt(off / free / spread)
    return Growth(exponent=slope, low=slope - half, high=slope + half)


def fit_growths(timings: pd.DataFrame, memory: pd.DataFrame) -> pd.DataFrame:
    """Return the growth exponents of one series: a row for each implementation and pass, for time and for peak memory.

    Times with the speed verdict ``inconclusive`` and times of disturbed calls are left out.
    """
    undisturbed = timings[(timings["state"] != "inconclusive") & (timings["calls"] != "disturbed")]
    rows = [
        row
        for measure, frame, column in (("time", undisturbed, "median_ns"), ("peak memory", memory, "peak_bytes"))
        for row in _make_rows(measure, frame, column)
    ]
    return pd.DataFrame(rows, columns=list(GROWTH))


def _make_rows(measure: str, frame: pd.DataFrame, column: str) -> Iterator[dict[str, object]]:
    # Not by pandas: a report may have thousands of groups, and each group of a data frame costs 0.3 ms.
    keys = zip(*(frame[name].tolist() for name in ("implementation", "pass", "dtype", "device")), strict=True)
    points: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for key, length, value in zip(keys, frame["length"].tolist(), frame[column].tolist(), strict=True):
        points.setdefault(key, []).append((length, value))
    for (name, pass_, dtype, device), own in points.items():
        lengths, values = zip(*own, strict=True)
        found = fit_growth(lengths, values)
        if found is not None:
            yield {
                "implementation": name,
                "pass": pass_,
                "measure": measure,
                "dtype": dtype,
                "device": device,
                "exponent": found.exponent,
                "low": found.low,
                "high": found.high,
                "level": LEVEL,
                "lengths": len(lengths),
                "shortest": min(lengths),
                "longest": max(lengths),
            }
