"""Tests of the medians, intervals and ratios of measured times, on numbers that can be computed by hand."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from attnbench.analysis.stats import (
    choose_measure,
    count_throttled_calls,
    estimate,
    estimate_clean_time,
    median_of_processes,
    rank_of,
    ratio,
    ratios_by_cycle,
    select_clean_calls,
    select_samples,
)
from attnbench.records.types import Timing


@pytest.mark.parametrize(
    ("count", "low", "high", "level"),
    [
        # The level of the whole range is 1 − 2/2ⁿ; with fewer than 6 processes that is below 95 %.
        (1, 1, 1, 0.0),
        (2, 1, 2, 0.5),
        (3, 1, 3, 0.75),
        (5, 1, 5, 0.9375),
        (6, 1, 6, 0.96875),
        # From the 2nd to the 7th value, the level 1 − 2(1 + 8)/2⁸ = 0.9297 would be too small.
        (8, 1, 8, 0.9921875),
        # Level 1 − 2(1 + 9)/2⁹.
        (9, 2, 8, 0.9609375),
        # Level 1 − 2(1 + 10)/2¹⁰.
        (10, 2, 9, 0.978515625),
        # Level 1 − 2(1 + 12 + 66)/2¹².
        (12, 3, 10, 0.96142578125),
    ],
)
def test_an_interval_lies_between_order_statistics(count: int, low: int, high: int, level: float) -> None:
    """The interval is the narrowest one between sorted values that covers the median with a level of at least 95 %.

    If none has that level, the interval is the whole range, with its exact level.
    """
    found = estimate(list(range(count, 0, -1)))
    assert (found.low, found.high, found.level, found.processes) == (low, high, level, count)
    assert found.value == (count + 1) / 2


def test_an_estimate_without_values_is_an_error() -> None:
    """``estimate`` of no values raises ValueError: at least one process is needed."""
    with pytest.raises(ValueError, match="at least one process"):
        estimate([])


def test_a_process_counts_once_however_many_samples_it_has() -> None:
    """A time is the median of the processes' medians, so a process with 100 samples counts as much as one with 2."""
    found = median_of_processes([[1, 2, 3], [10] * 100, [20, 22]])
    assert (found.value, found.low, found.high, found.level) == (10, 2, 21, 0.75)


def test_one_slow_sample_does_not_move_a_time() -> None:
    """The time of a process is the median of its samples, not the mean."""
    assert median_of_processes([[10, 10, 10_000]]).value == 10


def test_a_ratio_pairs_the_processes() -> None:
    """A ratio is taken within each process, so a process in which both implementations are slow has the usual ratio."""
    found = ratio([[20], [200], [2000]], [[10], [100], [1000]])
    assert (found.value, found.low, found.high, found.level) == (2, 2, 2, 0.75)


def test_a_process_without_samples_is_left_out_of_a_ratio() -> None:
    """A ratio uses only the processes that have samples of both implementations."""
    found = ratio([[30], [], [50]], [[10], [10], [10]])
    assert (found.value, found.low, found.high, found.processes) == (4, 3, 5, 2)


def test_a_ratio_of_samples_from_different_processes_is_an_error() -> None:
    """Samples of two implementations from different numbers of processes cannot be paired."""
    with pytest.raises(ValueError, match="zip"):
        ratio([[1], [2]], [[1]])


@pytest.mark.parametrize(("count", "rank"), [(0, 0), (6, 0), (7, 1), (9, 1), (10, 2), (12, 2), (20, 5), (30, 9)])
def test_a_rank_is_the_largest_within_the_tail(count: int, rank: int) -> None:
    """``rank_of`` returns the largest r for which P(Binomial(n, ½) < r) ≤ tail, or 0.

    The r-th smallest of n values lies above the true median with this probability, for example 11/1024 for the
    second of 10 values.
    """
    assert rank_of(count, 0.011) == rank


def test_a_smaller_tail_gives_a_wider_interval() -> None:
    """Of 20 values, the interval is by default the 6th to the 15th, and with ``tail`` = 1.1 % the 5th to the 16th."""
    values = list(range(1, 21))
    assert (estimate(values).low, estimate(values).high) == (6, 15)
    wide = estimate(values, tail=0.011)
    assert (wide.low, wide.high) == (5, 16)
    assert wide.level == pytest.approx(0.98818, abs=1e-5)


def test_a_time_is_that_of_clean_calls() -> None:
    """Calls that waited for a core are left out, and so are processes with fewer than five clean calls."""
    timing = Timing(
        samples_ns=((1000,) * 5 + (9000,) * 5, (1200,) * 5, (7000,) * 9, (1100,) * 4),
        waited_ns=((0,) * 5 + (8000,) * 5, (0,) * 5, (0,) * 4 + (5000,) * 5, (0,) * 4),
        threads=1,
    )
    assert select_clean_calls(timing) == ((1000,) * 5, (1200,) * 5, (), ())
    found = estimate_clean_time(timing)
    assert found is not None
    assert (found.value, found.processes) == (1100, 2)


def test_without_a_clean_process_there_is_no_time() -> None:
    """If every call waited for a core, the time is None: disturbed calls do not give the implementation's time."""
    assert estimate_clean_time(Timing(samples_ns=((1000,) * 9,), waited_ns=((900,) * 9,), threads=1)) is None


def test_a_timing_that_was_stored_without_counters_is_clean() -> None:
    """All calls of a timing without waits and switches, which older runs stored, count as clean."""
    found = estimate_clean_time(Timing(samples_ns=((1000,) * 5,), threads=1))
    assert found is not None
    assert found.value == 1000


def make_drifting(cycles: Sequence[int], factor: float, *, disturbed: Collection[int] = ()) -> Timing:
    """Make a timing with a call in each of ``cycles``, 1 % slower per cycle; disturbed calls take 3 times as long."""
    times = tuple(round(1e6 * factor * 1.01**cycle * (3 if cycle in disturbed else 1)) for cycle in cycles)
    waited = tuple(round(0.6 * t) if cycle in disturbed else 0 for t, cycle in zip(times, cycles, strict=True))
    return Timing(samples_ns=(times,), waited_ns=(waited,), cycles=(tuple(cycles),), threads=1)


def test_calls_of_one_cycle_are_compared() -> None:
    """The two calls of each cycle are compared, so neither a drift of the machine nor disturbed calls affect the ratio.

    If the timing does not say which call is of which cycle, the drift affects the ratio.
    """
    base = make_drifting(range(40), 1.0, disturbed=(31, 32))
    own = make_drifting(range(20, 40), 1.02, disturbed=(25,))
    assert ratios_by_cycle(own, base) == pytest.approx([1.02], abs=1e-5)
    assert ratios_by_cycle(replace(own, cycles=()), base)[0] > 1.1


def test_without_enough_common_clean_cycles_medians_are_compared() -> None:
    """If fewer than five cycles have clean calls of both implementations, the ratio of the medians is taken."""
    base = make_drifting(range(10), 1.0, disturbed=(0, 1, 2))
    own = make_drifting(range(10), 1.05, disturbed=(7, 8, 9))
    assert ratios_by_cycle(own, base)[0] == pytest.approx(1.05 / 1.01**3, rel=1e-3)


def test_a_process_that_does_not_count_for_one_side_has_no_ratio() -> None:
    """If one of two implementations has too few clean calls in a process, that process gives no ratio."""
    assert ratios_by_cycle(make_drifting(range(10), 1.0), make_drifting(range(10), 1.0, disturbed=range(8))) == []


ON_DEVICE = Timing(
    samples_ns=((3000,) * 10, (3300,) * 10, (3900,) * 10),
    waited_ns=((0,) * 10, (3300,) * 10, (0,) * 10),
    device_ns=((1000,) * 4 + (5000,) * 6, (1200,) * 9 + (9000,), (1400,) * 4 + (7000,) * 6),
    late=((False,) * 10, (False,) * 9 + (True,), (False,) * 10),
    clock_before_mhz=((1980,) * 10,) * 3,
    clock_after_mhz=((1980,) * 10, (1980,) * 10, (1980,) * 4 + (1755,) * 6),
    throttle_reasons=((0,) * 10, (1,) * 5 + (2,) * 5, (0,) * 10),
    threads=1,
)


def test_a_call_on_a_device_is_reported_by_its_device_time() -> None:
    """A device time is clean unless its sample was late or its cycle was throttled, even if the call waited for a core.

    The third process of ON_DEVICE is left out, because it has only four clean samples.
    """
    assert choose_measure(ON_DEVICE) == "device"
    assert select_samples(ON_DEVICE) == ON_DEVICE.device_ns
    assert select_clean_calls(ON_DEVICE) == ((1000,) * 4 + (5000,) * 6, (1200,) * 9, ())
    found = estimate_clean_time(ON_DEVICE)
    assert found is not None
    assert (found.value, found.processes) == ((5000 + 1200) / 2, 2)


def test_a_call_on_a_device_also_has_a_wall_time() -> None:
    """A wall time is clean unless the call waited for a core or its cycle was throttled; late samples are clean."""
    assert select_clean_calls(ON_DEVICE, "wall") == ((3000,) * 10, (), ())
    assert select_samples(ON_DEVICE, "wall") == ON_DEVICE.samples_ns
    found = estimate_clean_time(ON_DEVICE, "wall")
    assert found is not None
    assert (found.value, found.processes) == (3000, 1)


def test_throttled_samples_are_counted() -> None:
    """``count_throttled_calls`` counts the throttled samples of all processes.

    The throttle reasons 1 (idle device) and 2 (a clock that was set) do not count.
    """
    assert count_throttled_calls(ON_DEVICE) == 6
    assert count_throttled_calls(Timing(samples_ns=((1,) * 9,), threads=1)) == 0


def test_timings_are_compared_by_wall_time_unless_all_have_device_times() -> None:
    """Two timings are compared by wall time if one of them has no device times."""
    wall = Timing(samples_ns=((1,) * 9,), threads=1)
    assert choose_measure(wall) == choose_measure(ON_DEVICE, wall) == "wall"
    assert choose_measure(ON_DEVICE, ON_DEVICE) == "device"
