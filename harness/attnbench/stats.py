"""Medians with their intervals, and ratios of implementations that were timed in turns.

Samples inside one process are not independent (intraclass correlation 0.2 to 0.9), so every interval is taken over
processes: a process gives one number, the median of its calls.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Estimate", "estimate", "median_of_processes", "ratio"]

# Level that an interval should reach, where there are processes enough.
WANTED_LEVEL = 0.95

Samples = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median over processes, and the order statistics around it.

    ``level`` is the true level of the interval: with few processes even the whole range covers less than 95 %.
    """

    value: float
    low: float
    high: float
    level: float
    processes: int


def estimate(values: Sequence[float]) -> Estimate:
    """Median of one number per process, with the narrowest interval of order statistics of at least 95 %.

    The interval from the k-th smallest to the k-th largest of n covers the median with probability
    1 − 2 · P(Binomial(n, ½) < k).

    Raises: ValueError without any value.
    """
    if not values:
        raise ValueError("an estimate needs at least one process, got none")
    ordered, count = sorted(values), len(values)
    rank = max((k for k in range(1, count // 2 + 1) if _level(count, k) >= WANTED_LEVEL), default=1)
    return Estimate(
        value=float(statistics.median(ordered)),
        low=ordered[rank - 1],
        high=ordered[count - rank],
        level=_level(count, rank),
        processes=count,
    )


def _level(count: int, rank: int) -> float:
    below = sum(math.comb(count, i) for i in range(rank)) / 2**count
    return float(max(0.0, 1 - 2 * below))


def median_of_processes(samples_ns: Samples) -> Estimate:
    """Time of a call: the median of each process, then over processes. Unit: that of the samples."""
    return estimate([statistics.median(process) for process in samples_ns if process])


def ratio(samples_ns: Samples, baseline_ns: Samples) -> Estimate:
    """Time of a call over that of the baseline: one ratio of medians per process that timed both in turns."""
    pairs = [(own, base) for own, base in zip(samples_ns, baseline_ns, strict=True) if own and base]
    return estimate([statistics.median(own) / statistics.median(base) for own, base in pairs])
