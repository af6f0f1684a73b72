"""Medians with their intervals, over processes and over the calls that nothing else on the machine disturbed.

Samples inside one process are not independent (intraclass correlation 0.2 to 0.9), so every interval is taken over
processes: a process gives one number, the median of its calls.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnbench.analysis.disturbance import clean, throttled
from attnbench.records.types import Timing

__all__ = [
    "CLEAN_CALLS",
    "CLEAN_OF_ALL",
    "Estimate",
    "Measure",
    "Samples",
    "clean_calls",
    "estimate",
    "measure_of",
    "median_of_processes",
    "rank_of",
    "ratio",
    "ratio_in",
    "ratios_by_cycle",
    "samples_of",
    "throttled_calls",
    "time_of",
    "time_told",
]

# Which of two times of a call: that by the device's clock, or wall time from end to end.
Measure = Literal["device", "wall"]

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


def time_told(timing: Timing, measure: Measure) -> Estimate:
    """Time of a call, over its clean calls, or over all of them where other work disturbed every process."""
    return time_of(timing, measure) or median_of_processes(samples_of(timing, measure))


def ratio(samples_ns: Samples, baseline_ns: Samples) -> Estimate:
    """Time of a call over that of the baseline: one ratio of medians per process that timed both in turns."""
    pairs = [(own, base) for own, base in zip(samples_ns, baseline_ns, strict=True) if own and base]
    return estimate([statistics.median(own) / statistics.median(base) for own, base in pairs])


def measure_of(*timings: Timing) -> Measure:
    """Time by which these are told and judged: that of the device, where all have it."""
    return "device" if all(any(timing.device_ns) for timing in timings) else "wall"


def samples_of(timing: Timing, measure: Measure | None = None) -> Samples:
    """All samples of a measure, by default of the one that the timing is told by."""
    return timing.device_ns if (measure or measure_of(timing)) == "device" else timing.samples_ns


def clean_calls(timing: Timing, measure: Measure | None = None) -> tuple[tuple[int, ...], ...]:
    """Times of the clean calls of each process, in nanoseconds; nothing of a process that does not count.

    A process counts with ``CLEAN_CALLS`` clean calls or more, if they are ``CLEAN_OF_ALL`` of its calls or more. What
    the system's scheduler does to a process is nothing to a time by the device's clock, and a device that is throttled
    is to both.
    """
    measure = measure or measure_of(timing)
    return tuple(
        tuple(times_ns[call] for call in _clean(timing, process, measure))
        for process, times_ns in enumerate(samples_of(timing, measure))
    )


def ratios_by_cycle(own: Timing, base: Timing, measure: Measure | None = None) -> list[float]:
    """Time over that of the base in each process that counts on both sides."""
    measure = measure or measure_of(own, base)
    found = (ratio_in(process, own, [base], measure) for process in range(len(own.samples_ns)))
    return [ratio for ratio in found if ratio is not None]


def ratio_in(process: int, own: Timing, bases: Sequence[Timing], measure: Measure) -> float | None:
    """Time over that of the bases in a process: the median over the cycles that it has in common with either.

    The two calls of a cycle were made one right after another, and what the machine does for longer than that is in
    both: over many processes these medians scatter half as much (by variance) as ratios of the two sides' medians. Only
    cycles in which both calls were clean are taken; where these are too few, or the record does not say what was called
    when, it is the ratio of medians. None where the process does not count for all of them.
    """
    one, others = _clean(own, process, measure), [_clean(base, process, measure) for base in bases]
    if not one or not all(others):
        return None
    ours, met, theirs = samples_of(own, measure)[process], dict[int, int](), list[int]()
    for base, other in zip(bases, others, strict=True):
        times = samples_of(base, measure)[process]
        numbers = _counted(base.cycles, process, len(times))
        theirs += [times[call] for call in other]
        met |= {number: times[call] for call in other if (number := numbers[call]) is not None}
    cycles = _counted(own.cycles, process, len(ours))
    pairs = [ours[call] / met[number] for call in one if (number := cycles[call]) is not None and number in met]
    if len(pairs) < CLEAN_CALLS:
        return statistics.median(ours[call] for call in one) / statistics.median(theirs)
    return statistics.median(pairs)


def throttled_calls(timing: Timing) -> int:
    """Turns that are left out because their cycle met another clock of the device than it began with, or a lower one.

    The cycle is one for all implementations: whoever took part in it has that turn left out.
    """
    return sum(sum(_throttled(timing, process, len(times_ns))) for process, times_ns in enumerate(timing.samples_ns))


def _clean(timing: Timing, process: int, measure: Measure) -> list[int]:
    """Which calls of a process were clean, by their place; none of a process that does not count."""
    turns = len(samples_of(timing, measure)[process])
    disturbed = _late(timing, process, turns) if measure == "device" else _held_up(timing, process)
    slowed = _throttled(timing, process, turns)
    kept = [call for call, told in enumerate(zip(disturbed, slowed, strict=True)) if not any(told)]
    return kept if len(kept) >= CLEAN_CALLS and len(kept) >= CLEAN_OF_ALL * turns else []


def _held_up(timing: Timing, process: int) -> list[bool]:
    """Of each call of a process whether its threads had to do without a core."""
    times_ns = timing.samples_ns[process]
    waited = _counted(timing.waited_ns, process, len(times_ns))
    switches = _counted(timing.switches, process, len(times_ns))
    return [not clean(t, w, s) for t, w, s in zip(times_ns, waited, switches, strict=True)]


def _late(timing: Timing, process: int, turns: int) -> list[bool]:
    """Of each call of a process whether the device had to wait for its launch, which was to be hidden."""
    return [bool(late) for late in _counted(timing.late, process, turns)]


def _throttled(timing: Timing, process: int, turns: int) -> list[bool]:
    """Of each turn of a process whether the device's clock was not the same throughout its cycle."""
    columns = (timing.clock_before_mhz, timing.clock_after_mhz, timing.throttle_reasons)
    return [
        before is not None and after is not None and reasons is not None and throttled(before, after, reasons)
        for before, after, reasons in zip(*(_counted(column, process, turns) for column in columns), strict=True)
    ]


def _counted(counter: Samples, process: int, calls: int) -> Sequence[int | None]:
    """A counter of every call of a process, or None for each where it was not read."""
    there = counter[process] if process < len(counter) else ()
    return there if len(there) == calls else [None] * calls


def time_of(timing: Timing, measure: Measure | None = None) -> Estimate | None:
    """Time of a call: the median of the clean calls of each process that counts, then over processes.

    Unit: nanoseconds. None where no process counts: what was measured then is the machine's other work, too.
    """
    medians = [statistics.median(process) for process in clean_calls(timing, measure) if process]
    return estimate(medians) if medians else None
