"""Medians with their intervals, over processes and over the calls that nothing else on the machine disturbed.

Samples inside one process are not independent (intraclass correlation 0.2 to 0.9), so every interval is taken over
processes: a process gives one number, the median of its calls.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.records import Timing
from attnbench.scheduler import clean

__all__ = [
    "CLEAN_CALLS",
    "CLEAN_OF_ALL",
    "Estimate",
    "clean_calls",
    "estimate",
    "median_of_processes",
    "rank_of",
    "ratio",
    "time_of",
]

# Probability on either side of an interval, where there are processes enough: 95 % are inside.
TAIL = 0.025
# A process counts with at least so many clean calls, and with at least this share of its calls clean.
CLEAN_CALLS = 5
CLEAN_OF_ALL = 0.5

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


def estimate(values: Sequence[float], *, tail: float = TAIL) -> Estimate:
    """Median of one number per process, with the narrowest interval of order statistics that leaves out few enough.

    The interval from the r-th smallest to the r-th largest of n covers the median with probability
    1 − 2 · P(Binomial(n, ½) < r); each side leaves out ``tail`` at the most, or as little as n allows.

    Raises: ValueError without any value.
    """
    if not values:
        raise ValueError("an estimate needs at least one process, got none")
    ordered, count = sorted(values), len(values)
    rank = max(rank_of(count, tail), 1)
    return Estimate(
        value=float(statistics.median(ordered)),
        low=ordered[rank - 1],
        high=ordered[count - rank],
        level=max(0.0, 1 - 2 * _below(count, rank)),
        processes=count,
    )


def rank_of(count: int, tail: float) -> int:
    """Largest r with P(Binomial(count, ½) < r) ≤ tail; 0 where the smallest and the largest are too little."""
    return max((r for r in range(1, count // 2 + 1) if _below(count, r) <= tail), default=0)


def _below(count: int, rank: int) -> float:
    """Probability that fewer than ``rank`` of ``count`` numbers lie on one side of their median."""
    return float(sum(math.comb(count, i) for i in range(rank)) / 2**count)


def median_of_processes(samples_ns: Samples) -> Estimate:
    """Time of a call: the median of each process, then over processes. Unit: that of the samples."""
    return estimate([statistics.median(process) for process in samples_ns if process])


def ratio(samples_ns: Samples, baseline_ns: Samples) -> Estimate:
    """Time of a call over that of the baseline: one ratio of medians per process that timed both in turns."""
    pairs = [(own, base) for own, base in zip(samples_ns, baseline_ns, strict=True) if own and base]
    return estimate([statistics.median(own) / statistics.median(base) for own, base in pairs])


def clean_calls(timing: Timing) -> tuple[tuple[int, ...], ...]:
    """Times of the clean calls of each process, in nanoseconds; nothing of a process that does not count.

    A process counts with ``CLEAN_CALLS`` clean calls or more, if they are ``CLEAN_OF_ALL`` of its calls or more.
    """
    found = []
    for process, times_ns in enumerate(timing.samples_ns):
        waited = _counted(timing.waited_ns, process, len(times_ns))
        switches = _counted(timing.switches, process, len(times_ns))
        kept = tuple(t for t, w, s in zip(times_ns, waited, switches, strict=True) if clean(t, w, s))
        enough = len(kept) >= CLEAN_CALLS and len(kept) >= CLEAN_OF_ALL * len(times_ns)
        found.append(kept if enough else ())
    return tuple(found)


def _counted(counter: Samples, process: int, calls: int) -> Sequence[int | None]:
    """A counter of every call of a process, or None for each where it was not read."""
    there = counter[process] if process < len(counter) else ()
    return there if len(there) == calls else [None] * calls


def time_of(timing: Timing) -> Estimate | None:
    """Time of a call: the median of the clean calls of each process that counts, then over processes.

    Unit: nanoseconds. None where no process counts: what was measured then is the machine's other work, too.
    """
    medians = [statistics.median(process) for process in clean_calls(timing) if process]
    return estimate(medians) if medians else None
