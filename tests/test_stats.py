"""Tests of medians, intervals and ratios, on numbers that can be computed by hand."""

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
        # 1 − 2/2ⁿ: with few processes the whole range covers less than 95 %.
        (1, 1, 1, 0.0),
        (2, 1, 2, 0.5),
        (3, 1, 3, 0.75),
        (5, 1, 5, 0.9375),
        (6, 1, 6, 0.96875),
        # 1 − 2(1 + 8)/2⁸ = 0.9297 would be too small.
        (8, 1, 8, 0.9921875),
        # 1 − 2(1 + 9)/2⁹.
        (9, 2, 8, 0.9609375),
        # 1 − 2(1 + 10)/2¹⁰.
        (10, 2, 9, 0.978515625),
        # 1 − 2(1 + 12 + 66)/2¹².
        (12, 3, 10, 0.96142578125),
    ],
)
def test_an_interval_lies_between_order_statistics(count: int, low: int, high: int, level: float) -> None:
    """It is the narrowest that covers the median with at least 95 %, or the whole range with its exact level."""
    found = estimate(list(range(count, 0, -1)))
    assert (found.low, found.high, found.level, found.processes) == (low, high, level, count)
    assert found.value == (count + 1) / 2


def test_an_estimate_without_values_is_an_error() -> None:
    """At least one process is needed."""
    with pytest.raises(ValueError, match="at least one process"):
        estimate([])


def test_a_process_counts_once_however_many_samples_it_has() -> None:
    """The time of a call is the median of the processes' medians, not of all samples."""
    found = median_of_processes([[1, 2, 3], [10] * 100, [20, 22]])
    assert (found.value, found.low, found.high, found.level) == (10, 2, 21, 0.75)


def test_one_slow_sample_does_not_move_a_time() -> None:
    """The time of a process is its median, not its mean."""
    assert median_of_processes([[10, 10, 10_000]]).value == 10


def test_a_ratio_pairs_the_processes() -> None:
    """A process that was slow for both sides has the same ratio as one that was fast for both."""
    found = ratio([[20], [200], [2000]], [[10], [100], [1000]])
    assert (found.value, found.low, found.high, found.level) == (2, 2, 2, 0.75)


def test_a_process_without_samples_is_left_out_of_a_ratio() -> None:
    """Only processes that timed both sides count."""
    found = ratio([[30], [], [50]], [[10], [10], [10]])
    assert (found.value, found.low, found.high, found.processes) == (4, 3, 5, 2)


def test_a_ratio_of_samples_from_different_processes_is_an_error() -> None:
    """Samples that were not interleaved cannot be paired."""
    with pytest.raises(ValueError, match="zip"):
        ratio([[1], [2]], [[1]])


@pytest.mark.parametrize(("count", "rank"), [(0, 0), (6, 0), (7, 1), (9, 1), (10, 2), (12, 2), (20, 5), (30, 9)])
def test_a_rank_is_the_largest_within_the_tail(count: int, rank: int) -> None:
    """The r-th of n lies beyond the median with probability P(Binomial(n, ½) < r): 11/1024 for the second of 10."""
    assert rank_of(count, 0.011) == rank


def test_a_smaller_tail_gives_a_wider_interval() -> None:
    """For 20 numbers and 1.1 % on each side it is from the 5th to the 16th; by default from the 6th to the 15th."""
    values = list(range(1, 21))
    assert (estimate(values).low, estimate(values).high) == (6, 15)
    wide = estimate(values, tail=0.011)
    assert (wide.low, wide.high) == (5, 16)
    assert wide.level == pytest.approx(0.98818, abs=1e-5)


def test_a_time_is_that_of_clean_calls() -> None:
    """A call that waited for a core is left out; a process with too few other calls is left out as well."""
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
    """Times of disturbed calls are not reported as the implementation's."""
    assert estimate_clean_time(Timing(samples_ns=((1000,) * 9,), waited_ns=((900,) * 9,), threads=1)) is None


def test_a_timing_that_was_stored_without_counters_is_clean() -> None:
    """Older runs have neither waits nor switches."""
    found = estimate_clean_time(Timing(samples_ns=((1000,) * 5,), threads=1))
    assert found is not None
    assert found.value == 1000


def make_drifting(cycles: Sequence[int], factor: float, *, disturbed: Collection[int] = ()) -> Timing:
    """Make a timing on a machine that gets slower by 1 % per cycle; disturbed calls take three times as long."""
    times = tuple(round(1e6 * factor * 1.01**cycle * (3 if cycle in disturbed else 1)) for cycle in cycles)
    waited = tuple(round(0.6 * t) if cycle in disturbed else 0 for t, cycle in zip(times, cycles, strict=True))
    return Timing(samples_ns=(times,), waited_ns=(waited,), cycles=(tuple(cycles),), threads=1)


def test_calls_of_one_cycle_are_compared() -> None:
    """Neither a drift of the machine nor disturbed calls affect the ratio."""
    base = make_drifting(range(40), 1.0, disturbed=(31, 32))
    own = make_drifting(range(20, 40), 1.02, disturbed=(25,))
    assert ratios_by_cycle(own, base) == pytest.approx([1.02], abs=1e-5)
    assert ratios_by_cycle(replace(own, cycles=()), base)[0] > 1.1


def test_without_enough_common_clean_cycles_medians_are_compared() -> None:
    """Here both sides count, and only four cycles have two clean calls."""
    base = make_drifting(range(10), 1.0, disturbed=(0, 1, 2))
    own = make_drifting(range(10), 1.05, disturbed=(7, 8, 9))
    assert ratios_by_cycle(own, base)[0] == pytest.approx(1.05 / 1.01**3, rel=1e-3)


def test_a_process_that_does_not_count_for_one_side_has_no_ratio() -> None:
    """It has none even if all calls of the other side are clean."""
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
    """Late samples and samples of throttled cycles are left out; a wait for a core does not invalidate device times.

    The third process has four clean samples, which are too few.
    """
    assert choose_measure(ON_DEVICE) == "device"
    assert select_samples(ON_DEVICE) == ON_DEVICE.device_ns
    assert select_clean_calls(ON_DEVICE) == ((1000,) * 4 + (5000,) * 6, (1200,) * 9, ())
    found = estimate_clean_time(ON_DEVICE)
    assert found is not None
    assert (found.value, found.processes) == ((5000 + 1200) / 2, 2)


def test_a_call_on_a_device_also_has_a_wall_time() -> None:
    """Samples with waits for a core and samples of throttled cycles are left out; late samples are not."""
    assert select_clean_calls(ON_DEVICE, "wall") == ((3000,) * 10, (), ())
    assert select_samples(ON_DEVICE, "wall") == ON_DEVICE.samples_ns
    found = estimate_clean_time(ON_DEVICE, "wall")
    assert found is not None
    assert (found.value, found.processes) == (3000, 1)


def test_throttled_samples_are_counted() -> None:
    """Those of all processes count; an idle device or a clock that was set is not throttled."""
    assert count_throttled_calls(ON_DEVICE) == 6
    assert count_throttled_calls(Timing(samples_ns=((1,) * 9,), threads=1)) == 0


def test_timings_are_compared_by_wall_time_unless_all_have_device_times() -> None:
    """A device time is never compared with a wall time."""
    wall = Timing(samples_ns=((1,) * 9,), threads=1)
    assert choose_measure(wall) == choose_measure(ON_DEVICE, wall) == "wall"
    assert choose_measure(ON_DEVICE, ON_DEVICE) == "device"
