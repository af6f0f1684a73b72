"""Medians over processes of the times of undisturbed ("clean") calls, and confidence intervals.

Samples inside one process are not independent (intraclass correlation 0.2 to 0.9), so every interval is computed over
processes: a process contributes one number, a median over its calls.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Literal

from attnbench.analysis.clean_calls import is_throttled, select_clean
from attnbench.records.types import Timing

__all__ = [
    "CLEAN_CALLS",
    "CLEAN_OF_ALL",
    "Basis",
    "CleanCalls",
    "Column",
    "Divisor",
    "Estimate",
    "Interval",
    "Measure",
    "bound_median",
    "choose_measure",
    "count_throttled_calls",
    "estimate",
    "estimate_clean_time",
    "estimate_time",
    "median_of_processes",
    "rank_of",
    "ratio",
    "ratios_by_cycle",
    "select_clean_calls",
    "select_samples",
    "student_quantile",
]

# Which time of a call is used: its time on the device, or its wall time from end to end.
Measure = Literal["device", "wall"]

# Probability outside a confidence interval on each side: with enough processes, the interval covers 95 %.
TAIL = 0.025
# The clean calls of a process are enough only if there are at least this many.
CLEAN_CALLS = 5
# The clean calls of a process are enough only if they are at least this fraction of its calls.
CLEAN_OF_ALL = 0.5

# The samples of one quantity, by process.
Column = Sequence[Sequence[int]]
# From which calls a time is: from the processes with enough clean calls; from all calls, which are clean but too few;
# or from all calls, of which too many were disturbed.
Basis = Literal["clean", "few", "disturbed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A number and its confidence interval; the ends of an exact number are the number itself."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Interval):
    """A median over processes, and its confidence interval between two order statistics.

    ``level`` is the exact confidence level of the interval. With few processes, the level is below 95 % even if the
    interval is the range of all values.
    """

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
        level=max(0.0, level_of(count, rank)),
        processes=count,
    )


@cache
def rank_of(count: int, tail: float) -> int:
    """Return the largest r with P(Binomial(count, ½) < r) ≤ tail, or 0 if r = 1 is too large.

    For r = 1, the interval from the r-th smallest to the r-th largest number is the full range.
    """
    return max((r for r in range(1, count // 2 + 1) if _tail_probability(count, r) <= tail), default=0)


def level_of(count: int, rank: int) -> float:
    """Return the confidence level of the interval from the ``rank``-th smallest to the ``rank``-th largest number."""
    return 1 - 2 * _tail_probability(count, rank)


@cache
def _tail_probability(count: int, rank: int) -> float:
    """Return the probability that fewer than ``rank`` of ``count`` numbers lie below the median."""
    return float(sum(math.comb(count, i) for i in range(rank)) / 2**count)


def bound_median(values: Sequence[float], tail: float) -> float:
    """Return an upper bound of the true median of ratios, of which each process gives one.

    The true median lies above the bound with a probability of at most ``tail``. With enough processes, the bound is an
    order statistic, and supposes nothing about the distribution. With too few for such a bound, it is Student's bound
    of the mean of the logarithms, which supposes that these are normally distributed, but never below the largest
    ratio. It is infinite with a single process.

    Raises: ValueError if ``values`` is empty.
    """
    if not values:
        raise ValueError("a bound needs at least one process, got none")
    count, largest = len(values), max(values)
    if rank := rank_of(count, tail):
        return sorted(values)[count - rank]
    if count == 1:
        return math.inf
    logs = [math.log(value) for value in values]
    error = statistics.stdev(logs) / math.sqrt(count)
    return max(largest, math.exp(statistics.fmean(logs) + student_quantile(tail, count - 1) * error))


@cache
def student_quantile(tail: float, freedom: int) -> float:
    """Return the value that Student's t, with ``freedom`` degrees of freedom, exceeds with the probability ``tail``.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4, solved by bisection.
    """
    low, high = 0.0, 1.0
    while _student_tail(high, freedom) > tail:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_tail(middle, freedom) > tail else (low, middle)
    return high


def _student_tail(value: float, freedom: int) -> float:
    """Return the probability that Student's t exceeds a value of at least 0."""
    angle = math.atan(value / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    # The series has the powers of the cosine below the degrees of freedom that are even, or odd, as these are not.
    first = freedom % 2
    term, total = cosine**first, 0.0
    for power in range(first, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    inside = 2 / math.pi * (angle + sine * total) if first else sine * total
    return (1 - inside) / 2


def median_of_processes(samples_ns: Column) -> Estimate:
    """Return the time of a call in nanoseconds: the median of the medians of all processes."""
    return estimate([statistics.median(process) for process in samples_ns if process])


def estimate_time(calls: "CleanCalls") -> Estimate:
    """Return the time of a call in nanoseconds, from the clean calls alone.

    If no process has enough clean calls, all calls are used.
    """
    return calls.estimate() or median_of_processes(select_samples(calls.timing, calls.measure))


def ratio(samples_ns: Column, baseline_ns: Column) -> Estimate:
    """Return the time of a call divided by the baseline's time.

    Each process that timed both contributes one number, the ratio of the two medians.
    """
    pairs = [(own, base) for own, base in zip(samples_ns, baseline_ns, strict=True) if own and base]
    return estimate([statistics.median(own) / statistics.median(base) for own, base in pairs])


def choose_measure(*timings: Timing) -> Measure:
    """Return which time to compare: device time if all timings have it, else wall time."""
    return "device" if all(any(timing.device_ns) for timing in timings) else "wall"


def select_samples(timing: Timing, measure: Measure | None = None) -> Column:
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
    calls = CleanCalls(timing, measure or choose_measure(timing))
    return tuple(tuple(calls.list_times(process)) for process in range(calls.processes))


def ratios_by_cycle(own: Timing, base: Timing, measure: Measure | None = None) -> list[float]:
    """Return the time of ``own`` divided by the time of ``base``, for each process with enough clean calls."""
    measure = measure or choose_measure(own, base)
    calls, divisor = CleanCalls(own, measure), Divisor([CleanCalls(base, measure)])
    found = (divisor.divide(process, calls) for process in range(len(own.samples_ns)))
    return [ratio for ratio in found if ratio is not None]


class CleanCalls:
    """The clean calls of a timing, by device time or by wall time; they are found once for each process.

    ``few``: also those of processes with too few clean calls.
    """

    def __init__(self, timing: Timing, measure: Measure, *, few: bool = False) -> None:
        self.timing = timing
        self.measure = measure
        self._few = few
        self._samples = select_samples(timing, measure)
        # For each process the times of its clean calls, and the numbers of their cycles.
        self._found: dict[int, tuple[Sequence[int], Sequence[int]]] = {}

    @property
    def processes(self) -> int:
        """Number of processes, also of those without enough clean calls."""
        return len(self._samples)

    @property
    def basis(self) -> Basis:
        """From which calls ``estimate_time`` takes the time."""
        if any(self.list_times(process) for process in range(self.processes)):
            return "clean"
        clean = sum(len(_find_clean_calls(self.timing, process, self.measure)) for process in range(self.processes))
        return "few" if clean == sum(map(len, self._samples)) else "disturbed"

    def list_times(self, process: int) -> Sequence[int]:
        """Return the time, in nanoseconds, of each clean call of a process; empty if these are too few."""
        return self._find(process)[0]

    def list_cycles(self, process: int) -> Sequence[int]:
        """Return the number of the cycle of each of these calls; empty if the numbers were not recorded."""
        return self._find(process)[1]

    def estimate(self) -> Estimate | None:
        """Return the time of a call in nanoseconds; see ``estimate_clean_time``."""
        found = (self.list_times(process) for process in range(self.processes))
        medians = [statistics.median(times) for times in found if times]
        return estimate(medians) if medians else None

    def _find(self, process: int) -> tuple[Sequence[int], Sequence[int]]:
        if process not in self._found:
            kept, times_ns = _find_clean_calls(self.timing, process, self.measure), self._samples[process]
            kept = kept if self._few or _are_enough(kept, len(times_ns)) else ()
            cycles = _read_counter(self.timing.cycles, process, len(times_ns)) or ()
            self._found[process] = _select(times_ns, kept), _select(cycles, kept)
        return self._found[process]


class Divisor:
    """One or more timings by whose times those of other timings are divided; prepared once for each process.

    The times of several implementations are divided by those of the same baseline.
    """

    def __init__(self, bases: Sequence[CleanCalls]) -> None:
        self._bases = bases
        self._found: dict[int, tuple[dict[int, int], float] | None] = {}

    def divide(self, process: int, own: CleanCalls) -> float | None:
        """Return the ratio of the time of ``own`` to the time of the bases in one process.

        The result is the median ratio over the cycles that called ``own`` and one of the bases. The
        calls of a cycle follow one another directly, so a slow drift of the machine affects both calls.
        Over many processes, these medians of ratios have half the variance of ratios of medians. Only
        cycles in which both calls are clean are used. If there are too few such cycles, or the record has no
        cycle numbers, the result is the ratio of the medians of the clean calls. The result is None if
        the process has too few clean calls of one of the timings.
        """
        return self.reduce(process, own, self.list_ratios(process, own))

    def list_ratios(self, process: int, own: CleanCalls) -> list[float]:
        """Return the ratio of the times in each cycle of a process that called ``own`` and one of the bases."""
        times, prepared = own.list_times(process), self._get_prepared(process)
        if not times or prepared is None:
            return []
        by_cycle, _ = prepared
        pairs = zip(own.list_cycles(process), times, strict=False)
        return [time / by_cycle[cycle] for cycle, time in pairs if cycle in by_cycle]

    def reduce(self, process: int, own: CleanCalls, ratios: Sequence[float]) -> float | None:
        """Return the result of ``divide`` from the ratios of the cycles."""
        times, prepared = own.list_times(process), self._get_prepared(process)
        if not times or prepared is None:
            return None
        return statistics.median(ratios) if len(ratios) >= CLEAN_CALLS else statistics.median(times) / prepared[1]

    def find_time(self, process: int, own: CleanCalls) -> float | None:
        """Return the time of the bases, in nanoseconds, in the calls by which ``divide`` divides.

        It differs from the time over all calls if ``own`` takes part in few cycles and makes the calls after it slower:
        a call of 50 ms evicts what the next call would find in the caches.
        """
        prepared = self._get_prepared(process)
        if not own.list_times(process) or prepared is None:
            return None
        by_cycle, median = prepared
        times_ns = [by_cycle[cycle] for cycle in own.list_cycles(process) if cycle in by_cycle]
        return median if len(times_ns) < CLEAN_CALLS else float(statistics.median(times_ns))

    def is_clean(self, process: int) -> bool:
        """Whether each of the bases has enough clean calls in a process."""
        return self._get_prepared(process) is not None

    def _get_prepared(self, process: int) -> tuple[dict[int, int], float] | None:
        if process not in self._found:
            self._found[process] = self._prepare(process)
        return self._found[process]

    def _prepare(self, process: int) -> tuple[dict[int, int], float] | None:
        """Return the time of each cycle and the median of all times; None if one of the bases has no clean calls."""
        times = [base.list_times(process) for base in self._bases]
        if not all(times):
            return None
        cycles = [base.list_cycles(process) for base in self._bases]
        by_cycle = {cycle: time for pair in zip(cycles, times, strict=True) for cycle, time in zip(*pair, strict=False)}
        return by_cycle, statistics.median(chain.from_iterable(times))


def count_throttled_calls(timing: Timing) -> int:
    """Count the samples that are left out because the device's clock changed or was throttled during their cycle.

    Such a cycle is left out for every implementation that was called in it.
    """
    flags = (_flag_throttled(timing, process, len(times_ns)) for process, times_ns in enumerate(timing.samples_ns))
    return sum(sum(throttled) for throttled in flags if throttled is not None)


def _find_clean_calls(timing: Timing, process: int, measure: Measure) -> Sequence[int]:
    """Return the indices of a process's clean calls."""
    calls = len(select_samples(timing, measure)[process])
    kept: Sequence[int]
    if measure == "device":
        # A late call is one that the device started before the host had enqueued the whole call.
        late = _read_counter(timing.late, process, calls)
        kept = range(calls) if late is None else [call for call, flag in enumerate(late) if not flag]
    else:
        waited = _read_counter(timing.waited_ns, process, calls)
        switches = _read_counter(timing.switches, process, calls)
        kept = select_clean(timing.samples_ns[process], waited, switches)
    throttled = _flag_throttled(timing, process, calls)
    return kept if throttled is None else [call for call in kept if not throttled[call]]


def _select(values: Sequence[int], kept: Sequence[int]) -> Sequence[int]:
    """Return the values at these indices, which are in order; empty if there are no values."""
    return values if len(kept) == len(values) else [values[call] for call in kept if values]


def _are_enough(kept: Sequence[int], calls: int) -> bool:
    return len(kept) >= CLEAN_CALLS and len(kept) >= CLEAN_OF_ALL * calls


def _flag_throttled(timing: Timing, process: int, calls: int) -> list[bool] | None:
    """Return, for each sample, whether the device's clock changed or was throttled in its cycle; None if unknown."""
    before = _read_counter(timing.clock_before_mhz, process, calls)
    after = _read_counter(timing.clock_after_mhz, process, calls)
    reasons = _read_counter(timing.throttle_reasons, process, calls)
    if before is None or after is None or reasons is None:
        return None
    return [is_throttled(*reading) for reading in zip(before, after, reasons, strict=True)]


def _read_counter(counter: Column, process: int, calls: int) -> Sequence[int] | None:
    """Return a counter's value at each call of a process; None if the counter was not recorded."""
    values = counter[process] if process < len(counter) else ()
    return values if values and len(values) == calls else None


def estimate_clean_time(timing: Timing, measure: Measure | None = None) -> Estimate | None:
    """Return the time of a call in nanoseconds: the median over processes of each process's median.

    Only clean calls of processes with enough clean calls are used. Return None if no process has
    enough: other work on the machine then distorts the samples.
    """
    return CleanCalls(timing, measure or choose_measure(timing)).estimate()
