"""Ratios of times for a busy machine: from the undisturbed calls, however few they are, or from all calls.

Neither decides a speed verdict.
"""

import statistics
from collections.abc import Mapping

from attnbench.analysis.stats import CleanCalls, Estimate, choose_measure, estimate, select_samples
from attnbench.records.types import Timing

__all__ = ["divide_all_calls", "estimate_rough_ratio"]


def estimate_rough_ratio(own: Timing, base: Timing) -> Estimate | None:
    """Return the time of an implementation divided by the baseline's time, from cycles in which both were undisturbed.

    A speed verdict needs a number of undisturbed calls in each process; this ratio needs a single cycle. It is no
    verdict, and its ends are those of the range of the processes. Return None if every cycle was disturbed.
    """
    copies = [base, *([base.twin] if base.twin and base.twin is not own else [])]
    measure = choose_measure(own, *copies)
    calls = CleanCalls(own, measure, few=True)
    divisors = [CleanCalls(one, measure, few=True) for one in copies]
    processes = range(min(one.processes for one in (calls, *divisors)))
    found = [ratio for process in processes if (ratio := _divide(process, calls, divisors)) is not None]
    return estimate(found) if found else None


def divide_all_calls(own: Timing, base: Timing) -> list[float]:
    """Return the time of an implementation divided by the baseline's, for each process that timed both.

    The number of a process is the median over its cycles, also of those that other work disturbed: as long as it
    disturbs the two calls of a cycle alike, or fewer than half of the cycles, the median stays where it is. So a busy
    machine has these numbers, too, where the verdict has none.
    """
    copies = [*([base.twin] if base.twin and base.twin is not own else []), base]
    measure = choose_measure(own, *copies)
    found = []
    for process, times_ns in enumerate(select_samples(own, measure)):
        by_cycle = {
            cycle: time
            for one in copies
            for cycle, time in zip(one.cycles[process], select_samples(one, measure)[process], strict=True)
        }
        pairs = zip(own.cycles[process], times_ns, strict=True)
        ratios = [time / by_cycle[cycle] for cycle, time in pairs if cycle in by_cycle]
        if ratios:
            found.append(statistics.median(ratios))
    return found


def _divide(process: int, own: CleanCalls, divisors: list[CleanCalls]) -> float | None:
    """Return the median ratio over the cycles of one process that called both; of older runs, the ratio of medians."""
    times = own.list_times(process)
    if own.timing.cycles:
        by_cycle: Mapping[int, int] = {
            cycle: time
            for base in reversed(divisors)
            for cycle, time in zip(base.list_cycles(process), base.list_times(process), strict=False)
        }
        pairs = zip(own.list_cycles(process), times, strict=False)
        ratios = [time / by_cycle[cycle] for cycle, time in pairs if cycle in by_cycle]
        return statistics.median(ratios) if ratios else None
    base_times = divisors[0].list_times(process)
    return statistics.median(times) / statistics.median(base_times) if times and base_times else None
