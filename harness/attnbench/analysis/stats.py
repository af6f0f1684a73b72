"""Medians over processes of the times of undisturbed ("clean") calls, and confidence intervals.

Samples inside one process are not independent (intraclass correlation 0.2 to 0.9), so every interval is computed over
processes: a process contributes one number, a median over its calls.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnbench.analysis.clean_calls import is_clean, is_throttled
from attnbench.records.types import Timing

__all__ = [
    "CLEAN_CALLS",
    "CLEAN_OF_ALL",
    "Estimate",
    "Measure",
    "Samples",
    "base_time_in_process",
    "choose_measure",
    "count_throttled_calls",
    "estimate",
    "estimate_clean_time",
    "estimate_time",
    "median_of_processes",
    "rank_of",
    "ratio",
    "ratio_in_process",
    "ratios_by_cycle",
    "select_clean_calls",
    "select_samples",
]

# Which time of a call is used: its time on the device, or its wall time from end to end.
Measure = Literal["device", "wall"]

# Probability outside a confidence interval on each side: with enough processes, the interval covers 95 %.
TAIL = 0.025
# The clean calls of a process are enough only if there are at least this many.
CLEAN_CALLS = 5
# The clean calls of a process are enough only if they are at least this fraction of its calls.
CLEAN_OF_ALL = 0.5

Samples = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median over processes, and its confidence interval between two order statistics.

    ``level`` is the exact confidence level of the interval. With few processes, the level is below 95 % even if the
    interval is the range of all values.
    """

    value: float
    low: float
    high: float
    level: float
    processes: int


def estimate(values: Sequence[float], *, tail: float = TAIL) -> Estimate:
    """Return the median of one number per process, and its confidence interval.

    The interval from the r-th smallest to the r-th largest of n numbers covers the true median with
    probability 1 − 2 · P(Binomial(n, ½) < r). The probability that the median lies outside the returned
    interval is at most ``tail`` on each side. Of the intervals with this property, the narrowest is
    returned. If n is too small for such an interval, the range of all numbers is returned.

    Raises: ValueError if ``values`` is empty.
    """
    if not values:
        raise ValueError("an estimate needs at least one process, got none")
    ordered, count = sorted(values), len(values)
    rank = max(rank_of(count, tail), 1)
    return Estimate(
        value=float(statistics.median(ordered)),
        low=ordered[rank - 1],
        high=ordered[count - rank],
        level=max(0.0, 1 - 2 * _tail_probability(count, rank)),
        processes=count,
    )


def rank_of(count: int, tail: float) -> int:
    """Return the largest r with P(Binomial(count, ½) < r) ≤ tail, or 0 if r = 1 is too large.

    For r = 1, the interval from the r-th smallest to the r-th largest number is the full range.
    """
    return max((r for r in range(1, count // 2 + 1) if _tail_probability(count, r) <= tail), default=0)


def _tail_probability(count: int, rank: int) -> float:
    """Return the probability that fewer than ``rank`` of ``count`` numbers lie below the median."""
    return float(sum(math.comb(count, i) for i in range(rank)) / 2**count)


def median_of_processes(samples_ns: Samples) -> Estimate:
    """Return the time of a call in nanoseconds: the median of the medians of all processes."""
    return estimate([statistics.median(process) for process in samples_ns if process])


def estimate_time(timing: Timing, measure: Measure) -> Estimate:
    """Return the time of a call in nanoseconds, from the clean calls alone.

    If no process has enough clean calls, all calls are used.
    """
    return estimate_clean_time(timing, measure) or median_of_processes(select_samples(timing, measure))


def ratio(samples_ns: Samples, baseline_ns: Samples) -> Estimate:
    """Return the time of a call divided by the baseline's time.

    Each process that timed both contributes one number, the ratio of the two medians.
    """
    pairs = [(own, base) for own, base in zip(samples_ns, baseline_ns, strict=True) if own and base]
    return estimate([statistics.median(own) / statistics.median(base) for own, base in pairs])


def choose_measure(*timings: Timing) -> Measure:
    """Return which time to compare: device time if all timings have it, else wall time."""
    return "device" if all(any(timing.device_ns) for timing in timings) else "wall"


def select_samples(timing: Timing, measure: Measure | None = None) -> Samples:
    """Return all device times or wall times of a timing, in nanoseconds, as ``measure`` says.

    By default, the measure is the one that ``choose_measure`` returns for this timing.
    """
    return timing.device_ns if (measure or choose_measure(timing)) == "device" else timing.samples_ns


def select_clean_calls(timing: Timing, measure: Measure | None = None) -> tuple[tuple[int, ...], ...]:
    """Return the times of the clean calls of each process, in nanoseconds.

    The tuple of a process is empty if its clean calls are too few. They are enough if the process
    has at least ``CLEAN_CALLS`` clean calls, and if these are at least the fraction
    ``CLEAN_OF_ALL`` of its calls. A wait for a core does not invalidate device times; throttling
    invalidates both device and wall times.
    """
    measure = measure or choose_measure(timing)
    return tuple(
        tuple(times_ns[call] for call in _find_clean_calls(timing, process, measure))
        for process, times_ns in enumerate(select_samples(timing, measure))
    )


def ratios_by_cycle(own: Timing, base: Timing, measure: Measure | None = None) -> list[float]:
    """Return the time of ``own`` divided by the time of ``base``, for each process with enough clean calls."""
    measure = measure or choose_measure(own, base)
    found = (ratio_in_process(process, own, [base], measure) for process in range(len(own.samples_ns)))
    return [ratio for ratio in found if ratio is not None]


def ratio_in_process(process: int, own: Timing, bases: Sequence[Timing], measure: Measure) -> float | None:
    """Return the ratio of the time of ``own`` to the time of ``bases`` in one process.

    The result is the median ratio over the cycles that called ``own`` and one of the bases. The
    calls of a cycle follow one another directly, so a slow drift of the machine affects both calls.
    Over many processes, these medians of ratios have half the variance of ratios of medians. Only
    cycles with two clean calls are used. If there are too few such cycles, or the record has no
    cycle numbers, the result is the ratio of the medians of the clean calls. The result is None if
    the process has too few clean calls of one of the timings.
    """
    pairs = _pair_clean_calls(process, own, bases, measure)
    if pairs is None:
        return None
    own_ns, base_ns, paired = pairs
    if not paired:
        return statistics.median(own_ns) / statistics.median(base_ns)
    return statistics.median(one / base for one, base in zip(own_ns, base_ns, strict=True))


def base_time_in_process(process: int, own: Timing, bases: Sequence[Timing], measure: Measure) -> float | None:
    """Return the time of ``bases``, in nanoseconds, in the calls that ``ratio_in_process`` divides by.

    It differs from the time over all calls if ``own`` takes part in few cycles and makes the calls after it slower: a
    call of 50 ms evicts what the next call would find in the caches.
    """
    pairs = _pair_clean_calls(process, own, bases, measure)
    return None if pairs is None else float(statistics.median(pairs[1]))


def _pair_clean_calls(
    process: int, own: Timing, bases: Sequence[Timing], measure: Measure
) -> tuple[list[int], list[int], bool] | None:
    """Return the times of the clean calls of ``own`` and of ``bases``, and whether they are pairs of one cycle each.

    If too few cycles have two clean calls, all clean calls are returned, unpaired. None means that there are too few.
    """
    clean = _find_clean_calls(own, process, measure)
    clean_of_bases = [_find_clean_calls(base, process, measure) for base in bases]
    if not clean or not all(clean_of_bases):
        return None
    own_times, base_by_cycle, base_times = select_samples(own, measure)[process], dict[int, int](), list[int]()
    for base, clean_of_base in zip(bases, clean_of_bases, strict=True):
        times = select_samples(base, measure)[process]
        numbers = _read_counter(base.cycles, process, len(times))
        base_times += [times[call] for call in clean_of_base]
        base_by_cycle |= {number: times[call] for call in clean_of_base if (number := numbers[call]) is not None}
    cycles = _read_counter(own.cycles, process, len(own_times))
    pairs = [
        (own_times[call], base_by_cycle[number])
        for call in clean
        if (number := cycles[call]) is not None and number in base_by_cycle
    ]
    if len(pairs) < CLEAN_CALLS:
        return [own_times[call] for call in clean], base_times, False
    return [one for one, _ in pairs], [base for _, base in pairs], True


def count_throttled_calls(timing: Timing) -> int:
    """Count the samples that are left out because the device's clock changed or was throttled during their cycle.

    Such a cycle is left out for every implementation that was called in it.
    """
    return sum(
        sum(_flag_throttled(timing, process, len(times_ns))) for process, times_ns in enumerate(timing.samples_ns)
    )


def _find_clean_calls(timing: Timing, process: int, measure: Measure) -> list[int]:
    """Return the indices of a process's clean calls; empty if there are too few clean calls."""
    calls = len(select_samples(timing, measure)[process])
    disturbed = _flag_late(timing, process, calls) if measure == "device" else _flag_disturbed(timing, process)
    throttled = _flag_throttled(timing, process, calls)
    kept = [call for call, flags in enumerate(zip(disturbed, throttled, strict=True)) if not any(flags)]
    return kept if len(kept) >= CLEAN_CALLS and len(kept) >= CLEAN_OF_ALL * calls else []


def _flag_disturbed(timing: Timing, process: int) -> list[bool]:
    """Return, for each call of a process, whether its threads had to wait for a core."""
    times_ns = timing.samples_ns[process]
    waited = _read_counter(timing.waited_ns, process, len(times_ns))
    switches = _read_counter(timing.switches, process, len(times_ns))
    return [not is_clean(t, w, s) for t, w, s in zip(times_ns, waited, switches, strict=True)]


def _flag_late(timing: Timing, process: int, calls: int) -> list[bool]:
    """Return, for each call, whether the device started the call before the host had enqueued the whole call."""
    return [bool(late) for late in _read_counter(timing.late, process, calls)]


def _flag_throttled(timing: Timing, process: int, calls: int) -> list[bool]:
    """Return, for each sample, whether the device's clock changed or was throttled in its cycle."""
    columns = (timing.clock_before_mhz, timing.clock_after_mhz, timing.throttle_reasons)
    return [
        before is not None and after is not None and reasons is not None and is_throttled(before, after, reasons)
        for before, after, reasons in zip(*(_read_counter(column, process, calls) for column in columns), strict=True)
    ]


def _read_counter(counter: Samples, process: int, calls: int) -> Sequence[int | None]:
    """Return a counter's value at each call of a process; every value is None if the counter was not recorded."""
    values = counter[process] if process < len(counter) else ()
    return values if len(values) == calls else [None] * calls


def estimate_clean_time(timing: Timing, measure: Measure | None = None) -> Estimate | None:
    """Return the time of a call in nanoseconds: the median over processes of each process's median.

    Only clean calls of processes with enough clean calls are used. Return None if no process has
    enough: other work on the machine then distorts the samples.
    """
    medians = [statistics.median(process) for process in select_clean_calls(timing, measure) if process]
    return estimate(medians) if medians else None
