"""How time and memory grow with length: the exponent of a power law, with its interval."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

__all__ = ["GROWTH", "LEVEL", "Growth", "growth", "growths"]

LEVEL = 0.95
# Two-sided 95 % quantile of Student's t with 1 to 20 degrees of freedom; with more, the last is a little too wide.
# Source: https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
# Two lengths lie on any line.
FEWEST = 3
GROWTH = (
    "implementation", "pass", "measure", "dtype", "device", "exponent", "low", "high", "level", "lengths", "shortest",
    "longest",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Exponent p of a·Lᵖ, by least squares on logarithms, and its interval."""

    exponent: float
    low: float
    high: float


def growth(lengths: Sequence[float], values: Sequence[float]) -> Growth | None:
    """Exponent with which values grow with length; None of fewer than three lengths.

    The interval is Student's, at 95 %, from how far the points lie off the line: a curve that bends, as one does that
    has a linear part and a quadratic one, has a wide interval, however exact its points are.
    """
    if len(lengths) < FEWEST or len(set(lengths)) < FEWEST or min(values) <= 0:
        return None
    x, y = [math.log(length) for length in lengths], [math.log(value) for value in values]
    slope, intercept = statistics.linear_regression(x, y)
    free = len(x) - 2
    spread = sum((one - statistics.fmean(x)) ** 2 for one in x)
    off = sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    half = STUDENT_T[min(free, len(STUDENT_T)) - 1] * math.sqrt(off / free / spread)
    return Growth(exponent=slope, low=slope - half, high=slope + half)


def growths(timings: pd.DataFrame, memory: pd.DataFrame) -> pd.DataFrame:
    """Exponents of one series by implementation and pass, of time and of peak memory.

    Times that other work had a part in are left out.
    """
    undisturbed = timings[timings["state"] != "inconclusive"]
    rows = [
        row
        for measure, frame, column in (("time", undisturbed, "median_ns"), ("peak memory", memory, "peak_bytes"))
        for row in _rows(measure, frame, column)
    ]
    return pd.DataFrame(rows, columns=list(GROWTH))


def _rows(measure: str, frame: pd.DataFrame, column: str) -> Iterator[dict[str, object]]:
    for (name, pass_, dtype, device), own in frame.groupby(["implementation", "pass", "dtype", "device"], sort=False):
        lengths, values = own["length"].tolist(), own[column].tolist()
        found = growth(lengths, values)
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
