"""Tests of speed verdicts, on random samples with a known true ratio."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

import pytest

from attnbench.analysis.speed_verdict import STATES, VERDICTS, Mark, NoVerdict, State, decide_speed
from attnbench.records.types import Timing

# Time of a call of the baseline, in nanoseconds.
CALL_NS = 1_000_000
# Number of comparisons in a simulation; 4 comparisons are 1 %.
TRIALS = 400


def make_timing(*processes: float, calls: int = 9, share_waited: float = 0.0, copy: Timing | None = None) -> Timing:
    """Make a timing from one factor per process: each call of a process takes its factor times ``CALL_NS``."""
    samples = tuple((round(factor * CALL_NS),) * calls for factor in processes)
    waited = tuple(tuple(round(share_waited * t) for t in process) for process in samples)
    return Timing(samples_ns=samples, waited_ns=waited, switches=tuple((0,) * calls for _ in processes), threads=1,
                  twin=copy)  # fmt: skip


def draw_timings(source: random.Random, true_ratio: float, *, spread: float, processes: int) -> tuple[Timing, Timing]:
    """Draw the timings of an implementation, and of the baseline with its copy.

    The implementation takes ``true_ratio`` times as long as the baseline. In a slow process, all calls take 1.19 times
    as long as in a fast one. In each process, implementation, baseline and copy each draw one random factor, which
    scatters by ``spread`` (once in 56 times by 5 %); on a real machine, the addresses of tensors have such an effect.
    The times of single calls scatter by 0.5 %.
    """

    def draw_side(factor: float) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(
                round(CALL_NS * mode * factor * offset * source.lognormvariate(0, 0.005))
                for offset in [draw_offset()] * 9
            )
            for mode in modes
        )

    def draw_offset() -> float:
        return source.lognormvariate(0, 0.05 if source.random() < 1 / 56 else spread)

    modes = [source.choice((1.0, 1.19)) for _ in range(processes)]
    own, base, copy = draw_side(true_ratio), draw_side(1), draw_side(1)
    quiet = tuple((0,) * 9 for _ in modes)
    recorded = [Timing(samples_ns=samples, waited_ns=quiet, threads=1) for samples in (own, base, copy)]
    return recorded[0], replace(recorded[1], twin=recorded[2])


def count_states(true_ratio: float, *, spread: float = 0.002, processes: int = 10) -> Counter[State]:
    """Return how often each state occurs in ``TRIALS`` comparisons."""
    source = random.Random(f"{true_ratio} {spread} {processes}")
    return Counter(
        decide_speed(*draw_timings(source, true_ratio, spread=spread, processes=processes)).state for _ in range(TRIALS)
    )


def test_the_states_are_a_closed_set() -> None:
    """Three of the five states are verdicts; ``unknown`` and ``inconclusive`` say that there is none."""
    assert get_args(State) == ("faster", "slower", "same", "unknown", "inconclusive")
    assert get_args(State) == STATES
    assert set(STATES) - VERDICTS == {"unknown", "inconclusive"}


def test_the_threshold_is_an_argument() -> None:
    """The threshold ``effect`` is 1 % by default; with 3 %, a difference of 2 % is ``same``."""
    own, base = make_timing(*[1.02] * 10), make_timing(*[1] * 10)
    assert decide_speed(own, base).state == "slower"
    assert decide_speed(own, base, effect=0.03).state == "same"


@pytest.mark.parametrize("spread", [0.002, 0.01, 0.1])
@pytest.mark.parametrize("processes", [7, 10, 30])
def test_identical_code_gets_no_false_verdict(spread: float, processes: int) -> None:
    """In at most 1 % of comparisons of identical code the verdict is slower or faster, however large the spread is."""
    found = count_states(1, spread=spread, processes=processes)
    assert found["slower"] + found["faster"] <= TRIALS // 100


@pytest.mark.parametrize("true_ratio", [1.01, 0.99])
def test_a_difference_at_the_threshold_is_rarely_a_verdict(true_ratio: float) -> None:
    """A true difference of 1 % gives the most wrong verdicts, 1.07 %; the test allows 3 % for random variation."""
    found = count_states(true_ratio, processes=10)
    assert found["slower"] + found["faster"] <= 3 * TRIALS // 100


@pytest.mark.parametrize(
    ("true_ratio", "state"), [(1.02, "slower"), (0.98, "faster"), (1.5, "slower"), (0.1, "faster")]
)
def test_a_true_difference_of_two_percent_is_found(true_ratio: float, state: State) -> None:
    """For differences of 2 % or more, the verdict is right in at least 95 % of comparisons, and wrong in none."""
    found = count_states(true_ratio)
    assert found[state] >= 0.95 * TRIALS
    assert not {"slower", "faster", "same"} - {state} & found.keys()


def test_identical_code_is_found_to_be_the_same() -> None:
    """In at least 95 % of comparisons of identical code, the whole confidence interval lies within the threshold."""
    assert count_states(1)["same"] >= 0.95 * TRIALS


@pytest.mark.parametrize(
    ("processes", "mark"),
    [([1.2] * 10, "slower"), ([0.8] * 10, "faster"), ([1.0] * 10, "same"), ([0.97, 1.0] * 5, "not_slower"),
     ([1.0, 1.03] * 5, "not_faster"), ([0.97, 1.03] * 5, "undecided"), ([0.97, 1.0], "undecided")],
)  # fmt: skip
def test_an_open_verdict_may_exclude_one_side(processes: list[float], mark: Mark) -> None:
    """An interval that ends below 1.01 is not slower, and one that begins above 0.99 not faster, if it has a level."""
    assert decide_speed(make_timing(*processes), make_timing(*[1] * len(processes))).mark == mark


def test_a_wide_interval_is_unknown() -> None:
    """If the confidence interval crosses the threshold, the state is ``unknown``: more processes may give a verdict."""
    found = decide_speed(make_timing(*[1.0] * 5, *[1.02] * 5), make_timing(*[1] * 10))
    assert found.state == "unknown"
    assert found.reason == NoVerdict(cause="crosses_threshold", share=0.01)
    assert found.ratio is not None
    assert (found.ratio.low, found.ratio.high, found.ratio.processes) == (1.0, 1.02, 10)


@pytest.mark.parametrize(
    ("off", "of", "state"),
    [
        # The smallest of 7 ratios must be beyond the threshold, the second of 10, the fifth of 20, the ninth of 30.
        (0, 7, "slower"), (1, 7, "unknown"),
        (1, 10, "slower"), (2, 10, "unknown"),
        (4, 20, "slower"), (5, 20, "unknown"),
        (8, 30, "slower"), (9, 30, "unknown"),
    ],
)  # fmt: skip
def test_a_verdict_is_an_order_statistic(off: int, of: int, state: State) -> None:
    """A verdict tolerates some outlying processes, one of ten for example; one more makes the state ``unknown``."""
    assert decide_speed(make_timing(*[1.0] * off, *[1.1] * (of - off)), make_timing(*[1] * of)).state == state
    assert decide_speed(make_timing(*[1.0] * off, *[0.9] * (of - off)), make_timing(*[1] * of)).state == state.replace(
        "slow", "fast"
    )


@pytest.mark.parametrize("processes", range(7))
def test_few_processes_have_no_verdict(processes: int) -> None:
    """Six or fewer processes give no verdict: all six ratios are greater than 1 by chance once in 64 times."""
    found = decide_speed(make_timing(*[2] * processes), make_timing(*[1] * processes))
    assert (found.state, found.counted, found.of) == ("unknown", processes, processes)
    assert (found.ratio is None) == (processes == 0)


def make_waits(clean: int, of: int) -> tuple[tuple[int, ...], ...]:
    """Make the waiting times of ``of`` calls of one process; ``clean`` of these calls did not wait for a core."""
    return ((0,) * clean + (CALL_NS // 100,) * (of - clean),)


@pytest.mark.parametrize(
    ("clean", "of", "counts"), [(5, 5, True), (4, 4, False), (5, 10, True), (5, 11, False), (100, 200, True)]
)
@pytest.mark.parametrize("disturbed", ["own", "base"])
def test_a_process_counts_by_its_clean_calls(clean: int, of: int, counts: bool, disturbed: str) -> None:
    """A process counts if at least five calls, and half of all calls, of each compared side did not wait for a core."""
    own, base = make_timing(1, calls=of), make_timing(1, calls=of)
    if disturbed == "own":
        own = replace(own, waited_ns=make_waits(clean, of))
    else:
        base = replace(base, waited_ns=make_waits(clean, of))
    found = decide_speed(own, base)
    assert (found.counted, found.of, found.ratio is not None) == (int(counts), 1, counts)


def test_the_ratio_is_that_of_clean_calls() -> None:
    """Calls whose threads waited for a core do not contribute to the ratio."""
    samples = ((CALL_NS,) * 5 + (50 * CALL_NS,) * 4,) * 10
    waited = ((0,) * 5 + (49 * CALL_NS,) * 4,) * 10
    own = replace(make_timing(*[1] * 10), samples_ns=samples, waited_ns=waited)
    assert decide_speed(own, make_timing(*[1] * 10)).state == "same"


@pytest.mark.parametrize(
    ("disturbed", "of", "state"),
    [(0, 10, "slower"), (2, 10, "slower"), (3, 10, "inconclusive"), (22, 30, "slower"), (23, 30, "inconclusive"),
     (0, 7, "slower"), (1, 7, "inconclusive"), (1, 3, "inconclusive"), (0, 3, "unknown")],
)  # fmt: skip
def test_too_few_processes_that_count_are_inconclusive(disturbed: int, of: int, state: State) -> None:
    """At least eight processes must count, or all processes if fewer than eight were planned."""
    waited = ((CALL_NS,) * 9,) * disturbed + ((0,) * 9,) * (of - disturbed)
    found = decide_speed(replace(make_timing(*[2] * of), waited_ns=waited), make_timing(*[1] * of))
    assert (found.state, found.counted, found.of) == (state, of - disturbed, of)
    if state == "inconclusive":
        assert found.reason == NoVerdict(cause="disturbed", lost=disturbed, of=of)


def test_too_few_slow_calls_are_inconclusive() -> None:
    """If a process made fewer than five calls, the reason is slow calls, and not other work on the machine."""
    found = decide_speed(make_timing(*[2] * 10, calls=3), make_timing(*[1] * 10))
    assert (found.state, found.counted) == ("inconclusive", 0)
    assert found.reason == NoVerdict(cause="few_calls", count=3)


def test_contention_that_biases_a_ratio_is_inconclusive() -> None:
    """There is no verdict if, because of other work, one of the two compared sides takes 1.5 times as long."""
    own, base = make_timing(*[1.5] * 10, share_waited=0.3), make_timing(*[1] * 10, share_waited=0.1)
    found = decide_speed(own, base)
    assert (found.state, found.ratio, found.counted) == ("inconclusive", None, 0)


@pytest.mark.parametrize(("copy", "state"), [(1.02, "inconclusive"), (0.97, "inconclusive"), (1.005, "slower")])
def test_a_failed_control_is_inconclusive(copy: float, state: State) -> None:
    """If the baseline and its copy, which run the same code, differ in time, an implementation gets no verdict."""
    base = make_timing(*[1] * 10, copy=make_timing(*[copy] * 10))
    found = decide_speed(make_timing(*[1.2] * 10), base)
    assert found.state == state
    assert found.control is not None
    assert found.control.ratio is not None
    assert found.control.ratio.value == pytest.approx(copy)
    if state == "inconclusive":
        assert found.reason is not None
        assert found.reason.cause == "control"
        assert found.reason.share == pytest.approx(abs(copy - 1))


def test_an_unknown_control_does_not_prevent_a_verdict() -> None:
    """If ratios of baseline and copy scatter around 1, the control is ``unknown``, and there is still a verdict."""
    base = make_timing(*[1] * 10, copy=make_timing(*[0.98, 1.02] * 5))
    found = decide_speed(make_timing(*[1.2] * 10), base)
    assert found.state == "slower"
    assert found.control is not None
    assert found.control.state == "unknown"


# Each process repeats a cycle of calls. SHARED has the cycles that call the baseline, and those that call its copy.
CYCLES = range(1, 13)
SHARED = {"base": (1, 4, 5, 8, 9, 12), "copy": (2, 3, 6, 7, 10, 11)}


def make_cycles(numbers: Sequence[int], factor: float, *, processes: int = 10) -> Timing:
    """Make a timing with calls in the cycles ``numbers``, on a machine that gets slower from cycle to cycle."""
    samples = (tuple(round(factor * CALL_NS * (1 + number / 10)) for number in numbers),) * processes
    return Timing(samples_ns=samples, cycles=(tuple(numbers),) * processes, threads=1)


def make_sharing(copy: float) -> Timing:
    """Make the timing of a baseline and its copy; each cycle calls only one of these two."""
    return replace(make_cycles(SHARED["base"], 1), twin=make_cycles(SHARED["copy"], copy))


def test_the_copys_samples_count_as_the_baselines() -> None:
    """An implementation's call is compared with the call in the same cycle, whether of the baseline or of its copy."""
    for cycles in (CYCLES, SHARED["copy"], SHARED["base"]):
        found = decide_speed(make_cycles(cycles, 1.2), make_sharing(1.0))
        assert (found.state, found.counted, found.of) == ("slower", 10, 10)
        assert found.ratio is not None
        assert found.ratio.value == pytest.approx(1.2)


def test_the_control_compares_by_the_calls_of_the_same_cycles() -> None:
    """Baseline and copy are compared through the implementation's calls of the same cycles, so a drift cancels out."""
    base = replace(make_cycles((1, 2, 3, 4, 5, 6), 1), twin=make_cycles((7, 8, 9, 10, 11, 12), 1))
    found = decide_speed(make_cycles(CYCLES, 1.2), base)
    assert found.control is not None
    assert found.control.ratio is not None
    assert (found.state, found.control.state, found.control.counted) == ("slower", "same", 10)
    assert found.control.ratio.value == pytest.approx(1.0)
    off = decide_speed(make_cycles(CYCLES, 1.2), make_sharing(1.1))
    assert off.reason is not None
    assert (off.state, off.reason.cause) == ("inconclusive", "control")
    assert off.reason.share == pytest.approx(0.1)


def test_a_slow_call_with_too_few_common_cycles_is_compared_by_medians() -> None:
    """If two sides have too few cycles in common, their medians are compared; this takes five calls of each side."""
    slow = make_cycles((1, 3, 6, 8, 10), 9)
    found = decide_speed(slow, make_sharing(1.0))
    assert (found.state, found.counted) == ("slower", 10)
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(9)
    assert found.control is not None
    assert found.control.state == "same"


@pytest.mark.parametrize("disturbed", ["base", "copy"])
def test_a_process_counts_only_if_it_counts_for_baseline_and_copy(disturbed: str) -> None:
    """A process does not count if too many calls of the baseline, or of its copy, waited for a core: no A/A control."""
    held_up = tuple((CALL_NS,) * 6 for _ in range(10))
    base = make_sharing(1.0)
    assert base.twin is not None
    base = replace(base, waited_ns=held_up) if disturbed == "base" else base
    base = replace(base, twin=replace(base.twin, waited_ns=held_up)) if disturbed == "copy" and base.twin else base
    found = decide_speed(make_cycles(CYCLES, 1.2), base)
    assert (found.state, found.counted, found.reason) == (
        "inconclusive", 0, NoVerdict(cause="disturbed", lost=10, of=10)
    )  # fmt: skip


def test_too_few_calls_of_the_copy_are_the_reason() -> None:
    """If a process calls the baseline's copy fewer than five times, the reason for no verdict is slow calls."""
    base = replace(make_cycles(SHARED["base"], 1), twin=make_cycles(SHARED["copy"][:4], 1))
    found = decide_speed(make_cycles(CYCLES, 1.2), base)
    assert found.reason == NoVerdict(cause="few_calls", count=4)


def test_the_copy_is_compared_with_the_baseline_only() -> None:
    """The copy is compared with the baseline's own samples, not with those of baseline and copy together."""
    base = replace(make_cycles(SHARED["base"], 1), twin=make_cycles(SHARED["copy"], 2))
    assert base.twin is not None
    found = decide_speed(base.twin, base)
    assert (found.state, found.control) == ("slower", None)
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(2)


def test_in_older_runs_the_copy_was_called_in_every_cycle() -> None:
    """For older runs, implementations are compared with the baseline's samples only, not with the copy's samples."""
    old = replace(make_cycles(CYCLES, 1), twin=make_cycles(CYCLES, 1.008))
    found = decide_speed(make_cycles(CYCLES, 1.2), old)
    assert found.ratio is not None
    assert found.control is not None
    assert found.control.ratio is not None
    assert (found.ratio.value, found.control.ratio.value) == (pytest.approx(1.2), pytest.approx(1.008))


def test_processes_without_samples_of_one_side_are_not_counted() -> None:
    """A process without samples of one of the two compared sides does not count, and does not change the verdict."""
    own = replace(make_timing(*[1.2] * 10), samples_ns=make_timing(*[1.2] * 10).samples_ns + ((),) * 5)
    found = decide_speed(own, make_timing(*[1] * 15))
    assert (found.state, found.counted, found.of) == ("slower", 10, 10)


def test_samples_of_different_processes_are_an_error() -> None:
    """Timings are compared process by process, so that different numbers of processes are an error."""
    with pytest.raises(ValueError, match="interleaved timings must have the same number of processes, got 3 and 2"):
        decide_speed(make_timing(1, 1, 1), make_timing(1, 1))


CALL_COUNTERS: dict[str, tuple[Callable[[Timing], Timing], int]] = {
    "waits are the finer counter": (lambda t: replace(t, switches=((1,) * 9,) * 10), 10),
    "switches without waits": (lambda t: replace(t, waited_ns=(), switches=((1,) * 9,) * 10), 0),
    "no switches without waits": (lambda t: replace(t, waited_ns=()), 10),
    "neither": (lambda t: replace(t, waited_ns=(), switches=()), 10),
    "neither, by process": (lambda t: replace(t, waited_ns=((),) * 10, switches=((),) * 10), 10),
}


@pytest.mark.parametrize("case", CALL_COUNTERS)
def test_calls_are_clean_by_the_counters_that_a_system_has(case: str) -> None:
    """A call is clean if it did not wait for a core, or else had no context switch; without these counters, all are."""
    change, counted = CALL_COUNTERS[case]
    found = decide_speed(change(make_timing(*[1.2] * 10)), make_timing(*[1] * 10))
    assert (found.counted, found.state) == (counted, "slower" if counted else "inconclusive")


def make_device_timing(*processes: float, wall: float = 3.0, throttled: int = 0, late: int = 0) -> Timing:
    """Make a timing of ten samples per process, of which ``throttled`` samples are throttled and ``late`` are late."""
    count = len(processes)
    return Timing(
        samples_ns=((round(wall * CALL_NS),) * 10,) * count,
        waited_ns=((CALL_NS,) * 10,) * count,
        device_ns=tuple((round(factor * CALL_NS),) * 10 for factor in processes),
        late=((True,) * late + (False,) * (10 - late),) * count,
        clock_before_mhz=((1980,) * 10,) * count,
        clock_after_mhz=((1755,) * throttled + (1980,) * (10 - throttled),) * count,
        throttle_reasons=((4,) * throttled + (0,) * (10 - throttled),) * count,
        threads=1,
    )


def test_on_a_device_the_device_time_decides() -> None:
    """If device times exist, neither wall times nor waits for a core affect the verdict."""
    found = decide_speed(make_device_timing(*[1.2] * 10, wall=3), make_device_timing(*[1] * 10, wall=4))
    assert (found.state, found.measure) == ("slower", "device")
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(1.2)


def test_without_device_times_of_both_the_wall_time_decides() -> None:
    """If one of the two sides lacks device times, wall times are compared, also in the A/A control."""
    base = replace(make_timing(*[1] * 10), twin=make_timing(*[1] * 10))
    found = decide_speed(replace(make_device_timing(*[0.5] * 10, wall=1.2), waited_ns=()), base)
    assert (found.state, found.measure) == ("slower", "wall")
    assert found.control is not None
    assert (found.control.state, found.control.measure) == ("same", "wall")
    control = decide_speed(
        make_device_timing(*[1] * 10), replace(make_device_timing(*[1] * 10), twin=make_device_timing(*[1.1] * 10))
    ).control
    assert control is not None
    assert (control.state, control.measure) == ("slower", "device")


def test_a_few_throttled_cycles_are_left_out() -> None:
    """If three of ten cycles are throttled, the verdict comes from the other seven."""
    own = make_device_timing(*[1.2] * 10, throttled=3)
    slow = replace(own, device_ns=tuple((9 * CALL_NS,) * 3 + times[3:] for times in own.device_ns))
    found = decide_speed(slow, make_device_timing(*[1] * 10, throttled=3))
    assert (found.state, found.counted) == ("slower", 10)
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("disturbed", "reason"),
    [({"throttled": 6}, NoVerdict(cause="throttled", count=60, lost=10, of=10)),
     ({"late": 6}, NoVerdict(cause="delayed_launches", lost=10, of=10))],
)  # fmt: skip
def test_throttled_or_late_samples_give_no_verdict(disturbed: dict[str, int], reason: NoVerdict) -> None:
    """The reason says whether a throttled clock or late launches disturbed the samples."""
    found = decide_speed(make_device_timing(*[1.2] * 10, **disturbed), make_device_timing(*[1] * 10))
    assert (found.state, found.ratio, found.reason) == ("inconclusive", None, reason)
