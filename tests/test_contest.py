"""Tests of the judge of speed, on samples that are drawn: what is true of them is known."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

import pytest

from attnbench.analysis.speed_verdict import STATES, VERDICTS, State, decide_speed
from attnbench.records.types import Timing

# Time of a call of the baseline, in nanoseconds.
CALL_NS = 1_000_000
# Comparisons of a simulation: 1 % of them is 4.
TRIALS = 400


def timing(*processes: float, calls: int = 9, share_waited: float = 0.0, twin: Timing | None = None) -> Timing:
    """Timing in which every call of a process took so many times ``CALL_NS``."""
    samples = tuple((round(factor * CALL_NS),) * calls for factor in processes)
    waited = tuple(tuple(round(share_waited * t) for t in process) for process in samples)
    return Timing(samples_ns=samples, waited_ns=waited, switches=tuple((0,) * calls for _ in processes), threads=1,
                  twin=twin)  # fmt: skip


def drawn(source: random.Random, truth: float, *, spread: float, processes: int) -> tuple[Timing, Timing]:
    """An implementation that takes ``truth`` times as long as the baseline, and the baseline with its twin.

    A process is quick or slow as a whole; each side has an offset of its own in it (where its tensors lie), of
    ``spread``, and once in 56 times one of 5 %; calls scatter by 0.5 %.
    """

    def side(factor: float) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(
                round(CALL_NS * mode * factor * offset * source.lognormvariate(0, 0.005)) for offset in [offsets()] * 9
            )
            for mode in modes
        )

    def offsets() -> float:
        return source.lognormvariate(0, 0.05 if source.random() < 1 / 56 else spread)

    modes = [source.choice((1.0, 1.19)) for _ in range(processes)]
    own, base, twin = side(truth), side(1), side(1)
    quiet = tuple((0,) * 9 for _ in modes)
    recorded = [Timing(samples_ns=samples, waited_ns=quiet, threads=1) for samples in (own, base, twin)]
    return recorded[0], replace(recorded[1], twin=recorded[2])


def states(truth: float, *, spread: float = 0.002, processes: int = 10) -> Counter[State]:
    """How often each state comes out of ``TRIALS`` comparisons."""
    source = random.Random(f"{truth} {spread} {processes}")
    return Counter(decide_speed(*drawn(source, truth, spread=spread, processes=processes)).state for _ in range(TRIALS))


def test_the_states_are_a_closed_set() -> None:
    """Three states say how two compare, two say that this cannot be said."""
    assert get_args(State) == ("faster", "slower", "same", "unknown", "inconclusive")
    assert get_args(State) == STATES
    assert set(STATES) - VERDICTS == {"unknown", "inconclusive"}


def test_what_counts_may_be_told() -> None:
    """1 % unless told otherwise."""
    own, base = timing(*[1.02] * 10), timing(*[1] * 10)
    assert decide_speed(own, base).state == "slower"
    assert decide_speed(own, base, effect=0.03).state == "same"


@pytest.mark.parametrize("spread", [0.002, 0.01, 0.1])
@pytest.mark.parametrize("processes", [7, 10, 30])
def test_identical_code_gets_no_false_verdict(spread: float, processes: int) -> None:
    """In at most 1 % of comparisons of a thing with itself one is called slower or faster, however they scatter."""
    found = states(1, spread=spread, processes=processes)
    assert found["slower"] + found["faster"] <= TRIALS // 100


@pytest.mark.parametrize("truth", [1.01, 0.99])
def test_a_difference_at_the_edge_is_hardly_ever_called_one(truth: float) -> None:
    """What is true of the edge of what counts is the worst case: 1.07 % of verdicts, here with room for chance."""
    found = states(truth, processes=10)
    assert found["slower"] + found["faster"] <= 3 * TRIALS // 100


@pytest.mark.parametrize(("truth", "state"), [(1.02, "slower"), (0.98, "faster"), (1.5, "slower"), (0.1, "faster")])
def test_a_true_difference_of_two_percent_is_found(truth: float, state: State) -> None:
    """In at least 95 % of comparisons, and the other way round in none."""
    found = states(truth)
    assert found[state] >= 0.95 * TRIALS
    assert not {"slower", "faster", "same"} - {state} & found.keys()


def test_what_is_the_same_is_called_the_same() -> None:
    """Where the whole interval lies within what counts."""
    assert states(1)["same"] >= 0.95 * TRIALS


def test_a_wide_interval_is_unknown() -> None:
    """Where the interval reaches across the edge of what counts, more processes may tell."""
    found = decide_speed(timing(*[1.0] * 5, *[1.02] * 5), timing(*[1] * 10))
    assert found.state == "unknown"
    assert found.reason == "the confidence interval crosses the threshold of 1%"
    assert found.ratio is not None
    assert (found.ratio.low, found.ratio.high, found.ratio.processes) == (1.0, 1.02, 10)


@pytest.mark.parametrize(
    ("off", "of", "state"),
    [
        # The smallest, the second, the fifth and the ninth of these many must be beyond what counts.
        (0, 7, "slower"), (1, 7, "unknown"),
        (1, 10, "slower"), (2, 10, "unknown"),
        (4, 20, "slower"), (5, 20, "unknown"),
        (8, 30, "slower"), (9, 30, "unknown"),
    ],
)  # fmt: skip
def test_a_verdict_is_an_order_statistic(off: int, of: int, state: State) -> None:
    """A few processes that went astray decide nothing, and what is more than a few leaves it open."""
    assert decide_speed(timing(*[1.0] * off, *[1.1] * (of - off)), timing(*[1] * of)).state == state
    assert decide_speed(timing(*[1.0] * off, *[0.9] * (of - off)), timing(*[1] * of)).state == state.replace(
        "slow", "fast"
    )


@pytest.mark.parametrize("processes", range(7))
def test_few_processes_have_no_verdict(processes: int) -> None:
    """Six all on one side are that by chance once in 64."""
    found = decide_speed(timing(*[2] * processes), timing(*[1] * processes))
    assert (found.state, found.counted, found.of) == ("unknown", processes, processes)
    assert (found.ratio is None) == (processes == 0)


def mixed(clean: int, of: int) -> tuple[tuple[int, ...], ...]:
    """Waiting in one process: of so many calls, that many are clean."""
    return ((0,) * clean + (CALL_NS // 100,) * (of - clean),)


@pytest.mark.parametrize(
    ("clean", "of", "counts"), [(5, 5, True), (4, 4, False), (5, 10, True), (5, 11, False), (100, 200, True)]
)
@pytest.mark.parametrize("disturbed", ["own", "base"])
def test_a_process_counts_by_its_clean_calls(clean: int, of: int, counts: bool, disturbed: str) -> None:
    """Five at least, and half of all, on either side."""
    own, base = timing(1, calls=of), timing(1, calls=of)
    if disturbed == "own":
        own = replace(own, waited_ns=mixed(clean, of))
    else:
        base = replace(base, waited_ns=mixed(clean, of))
    found = decide_speed(own, base)
    assert (found.counted, found.of, found.ratio is not None) == (int(counts), 1, counts)


def test_only_clean_calls_make_the_ratio() -> None:
    """What a call took while its threads waited for a core says nothing of the implementation."""
    samples = ((CALL_NS,) * 5 + (50 * CALL_NS,) * 4,) * 10
    waited = ((0,) * 5 + (49 * CALL_NS,) * 4,) * 10
    own = replace(timing(*[1] * 10), samples_ns=samples, waited_ns=waited)
    assert decide_speed(own, timing(*[1] * 10)).state == "same"


@pytest.mark.parametrize(
    ("disturbed", "of", "state"),
    [(0, 10, "slower"), (2, 10, "slower"), (3, 10, "inconclusive"), (22, 30, "slower"), (23, 30, "inconclusive"),
     (0, 7, "slower"), (1, 7, "inconclusive"), (1, 3, "inconclusive"), (0, 3, "unknown")],
)  # fmt: skip
def test_too_few_processes_that_count_are_inconclusive(disturbed: int, of: int, state: State) -> None:
    """Eight must count; of fewer that were planned, all."""
    waited = ((CALL_NS,) * 9,) * disturbed + ((0,) * 9,) * (of - disturbed)
    found = decide_speed(replace(timing(*[2] * of), waited_ns=waited), timing(*[1] * of))
    assert (found.state, found.counted, found.of) == (state, of - disturbed, of)
    if state == "inconclusive":
        assert found.reason == f"other work disturbed {disturbed} of {of} processes"


def test_calls_too_slow_for_the_time_given_are_inconclusive() -> None:
    """Not for the sake of other work, and the reason says so."""
    found = decide_speed(timing(*[2] * 10, calls=3), timing(*[1] * 10))
    assert (found.state, found.counted) == ("inconclusive", 0)
    assert found.reason == "calls are too slow: a process made 3 of the 5 calls that it needs"


def test_contention_that_biases_a_ratio_is_inconclusive() -> None:
    """A competitor that makes one side half as slow again, in every process alike, does not pass for a difference."""
    own, base = timing(*[1.5] * 10, share_waited=0.3), timing(*[1] * 10, share_waited=0.1)
    found = decide_speed(own, base)
    assert (found.state, found.ratio, found.counted) == ("inconclusive", None, 0)


@pytest.mark.parametrize(("twin", "state"), [(1.02, "inconclusive"), (0.97, "inconclusive"), (1.005, "slower")])
def test_a_baseline_that_differs_from_itself_judges_nobody(twin: float, state: State) -> None:
    """Where the null arm shows a difference, so may everything else."""
    base = timing(*[1] * 10, twin=timing(*[twin] * 10))
    found = decide_speed(timing(*[1.2] * 10), base)
    assert found.state == state
    assert found.control is not None
    assert found.control.ratio is not None
    assert found.control.ratio.value == pytest.approx(twin)
    if state == "inconclusive":
        difference = f"{100 * abs(twin - 1):.1f} %"
        assert found.reason == f"A/A control failed: the baseline differs from its copy by {difference}"


def test_a_null_arm_that_cannot_tell_hinders_nobody() -> None:
    """A twin that scatters about the baseline is no sign that the baseline is off."""
    base = timing(*[1] * 10, twin=timing(*[0.98, 1.02] * 5))
    found = decide_speed(timing(*[1.2] * 10), base)
    assert found.state == "slower"
    assert found.control is not None
    assert found.control.state == "unknown"


# Cycles of a process, and who of the baseline's two has a turn in which.
CYCLES = range(1, 13)
SHARED = {"base": (1, 4, 5, 8, 9, 12), "twin": (2, 3, 6, 7, 10, 11)}


def in_cycles(numbers: Sequence[int], factor: float, *, processes: int = 10) -> Timing:
    """Calls in these cycles, on a machine that is slower in every cycle than in the one before."""
    samples = (tuple(round(factor * CALL_NS * (1 + number / 10)) for number in numbers),) * processes
    return Timing(samples_ns=samples, cycles=(tuple(numbers),) * processes, threads=1)


def sharing(twin: float) -> Timing:
    """The baseline, whose turns its twin shares."""
    return replace(in_cycles(SHARED["base"], 1), twin=in_cycles(SHARED["twin"], twin))


def test_a_baseline_that_shares_its_turns_is_one_with_its_twin() -> None:
    """Each cycle has one of the two, and a call is compared with the one of its own cycle."""
    for cycles in (CYCLES, SHARED["twin"], SHARED["base"]):
        found = decide_speed(in_cycles(cycles, 1.2), sharing(1.0))
        assert (found.state, found.counted, found.of) == ("slower", 10, 10)
        assert found.ratio is not None
        assert found.ratio.value == pytest.approx(1.2)


def test_a_baseline_that_shares_its_turns_is_compared_with_its_twin_beside_the_same_calls() -> None:
    """The two never meet in a cycle; what is compared meets both, and so a drift is no difference."""
    base = replace(in_cycles((1, 2, 3, 4, 5, 6), 1), twin=in_cycles((7, 8, 9, 10, 11, 12), 1))
    found = decide_speed(in_cycles(CYCLES, 1.2), base)
    assert found.control is not None
    assert found.control.ratio is not None
    assert (found.state, found.control.state, found.control.counted) == ("slower", "same", 10)
    assert found.control.ratio.value == pytest.approx(1.0)
    off = decide_speed(in_cycles(CYCLES, 1.2), sharing(1.1))
    reason = "A/A control failed: the baseline differs from its copy by 10.0 %"
    assert (off.state, off.reason) == ("inconclusive", reason)


def test_a_slow_call_that_met_each_of_the_two_too_seldom_is_compared_by_medians() -> None:
    """Five calls are enough for it, and for either of the two."""
    slow = in_cycles((1, 3, 6, 8, 10), 9)
    found = decide_speed(slow, sharing(1.0))
    assert (found.state, found.counted) == ("slower", 10)
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(9)
    assert found.control is not None
    assert found.control.state == "same"


@pytest.mark.parametrize("disturbed", ["base", "twin"])
def test_a_process_counts_where_both_of_the_two_do(disturbed: str) -> None:
    """Otherwise nobody would know whether the baseline differs from itself."""
    held_up = tuple((CALL_NS,) * 6 for _ in range(10))
    base = sharing(1.0)
    assert base.twin is not None
    base = replace(base, waited_ns=held_up) if disturbed == "base" else base
    base = replace(base, twin=replace(base.twin, waited_ns=held_up)) if disturbed == "twin" and base.twin else base
    found = decide_speed(in_cycles(CYCLES, 1.2), base)
    assert (found.state, found.counted, found.reason) == (
        "inconclusive", 0, "other work disturbed 10 of 10 processes"
    )  # fmt: skip


def test_too_few_calls_of_one_of_the_two_are_told() -> None:
    """As of any side."""
    base = replace(in_cycles(SHARED["base"], 1), twin=in_cycles(SHARED["twin"][:4], 1))
    found = decide_speed(in_cycles(CYCLES, 1.2), base)
    assert found.reason == "calls are too slow: a process made 4 of the 5 calls that it needs"


def test_the_twin_is_compared_with_the_baseline_alone() -> None:
    """Not with what it is a part of."""
    base = replace(in_cycles(SHARED["base"], 1), twin=in_cycles(SHARED["twin"], 2))
    assert base.twin is not None
    found = decide_speed(base.twin, base)
    assert (found.state, found.control) == ("slower", None)
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(2)


def test_in_older_runs_the_twin_took_part_in_every_cycle() -> None:
    """What is compared is compared with the baseline alone, as it was when it was measured."""
    old = replace(in_cycles(CYCLES, 1), twin=in_cycles(CYCLES, 1.008))
    found = decide_speed(in_cycles(CYCLES, 1.2), old)
    assert found.ratio is not None
    assert found.control is not None
    assert found.control.ratio is not None
    assert (found.ratio.value, found.control.ratio.value) == (pytest.approx(1.2), pytest.approx(1.008))


def test_processes_in_which_one_took_no_part_are_not_counted() -> None:
    """Processes that were added for others leave a contest as it was."""
    own = replace(timing(*[1.2] * 10), samples_ns=timing(*[1.2] * 10).samples_ns + ((),) * 5)
    found = decide_speed(own, timing(*[1] * 15))
    assert (found.state, found.counted, found.of) == ("slower", 10, 10)


def test_samples_of_other_processes_are_refused() -> None:
    """What was not taken in turns is no contest."""
    with pytest.raises(ValueError, match="interleaved timings must have equally many processes, got 3 and 2"):
        decide_speed(timing(1, 1, 1), timing(1, 1))


CALL_COUNTERS: dict[str, tuple[Callable[[Timing], Timing], int]] = {
    "waits are the finer counter": (lambda t: replace(t, switches=((1,) * 9,) * 10), 10),
    "switches where no waits are told": (lambda t: replace(t, waited_ns=(), switches=((1,) * 9,) * 10), 0),
    "no switches where no waits are told": (lambda t: replace(t, waited_ns=()), 10),
    "neither": (lambda t: replace(t, waited_ns=(), switches=()), 10),
    "neither, told a process": (lambda t: replace(t, waited_ns=((),) * 10, switches=((),) * 10), 10),
}


@pytest.mark.parametrize("case", CALL_COUNTERS)
def test_a_system_without_a_counter_is_judged_by_the_others(case: str) -> None:
    """By waits, else by switches; a system that counts neither has only clean calls."""
    change, counted = CALL_COUNTERS[case]
    found = decide_speed(change(timing(*[1.2] * 10)), timing(*[1] * 10))
    assert (found.counted, found.state) == (counted, "slower" if counted else "inconclusive")


def on_device(*processes: float, wall: float = 3.0, throttled: int = 0, late: int = 0) -> Timing:
    """Timing of ten turns a process, of which so many were throttled, or late, in each."""
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


def test_on_a_device_its_own_time_decides() -> None:
    """However long both take from end to end, and whatever the scheduler did to their processes."""
    found = decide_speed(on_device(*[1.2] * 10, wall=3), on_device(*[1] * 10, wall=4))
    assert (found.state, found.measure) == ("slower", "device")
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(1.2)


def test_without_a_devices_time_of_both_that_from_end_to_end_decides() -> None:
    """And of the baseline's twin it is the same kind of time that tells what noise is."""
    base = replace(timing(*[1] * 10), twin=timing(*[1] * 10))
    found = decide_speed(replace(on_device(*[0.5] * 10, wall=1.2), waited_ns=()), base)
    assert (found.state, found.measure) == ("slower", "wall")
    assert found.control is not None
    assert (found.control.state, found.control.measure) == ("same", "wall")
    null = decide_speed(on_device(*[1] * 10), replace(on_device(*[1] * 10), twin=on_device(*[1.1] * 10))).control
    assert null is not None
    assert (null.state, null.measure) == ("slower", "device")


def test_a_few_throttled_cycles_are_left_out() -> None:
    """The others decide."""
    own = on_device(*[1.2] * 10, throttled=3)
    slow = replace(own, device_ns=tuple((9 * CALL_NS,) * 3 + times[3:] for times in own.device_ns))
    found = decide_speed(slow, on_device(*[1] * 10, throttled=3))
    assert (found.state, found.counted) == ("slower", 10)
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("disturbed", "reason"),
    [({"throttled": 6}, "the device's clock changed or was throttled in 60 cycles: 10 of 10 processes do not count"),
     ({"late": 6}, "other work delayed launches in 10 of 10 processes")],
)  # fmt: skip
def test_a_device_that_was_throttled_or_kept_waiting_gives_no_verdict(disturbed: dict[str, int], reason: str) -> None:
    """And it is said which."""
    found = decide_speed(on_device(*[1.2] * 10, **disturbed), on_device(*[1] * 10))
    assert (found.state, found.ratio, found.reason) == ("inconclusive", None, reason)
