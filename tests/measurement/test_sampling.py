"""Tests of interleaved sampling, on a fake clock whose time passes only inside the timed calls."""

import gc
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from attnbench.analysis.stats import select_clean_calls
from attnbench.devices.timer import ClockReading, DeviceSample, Timer
from attnbench.measurement import sampling
from attnbench.measurement.sampling import FEWEST, MOST, WARM_UP_CALLS, CallFailed, sample_interleaved
from attnbench.measurement.scheduler import Reading, Scheduler
from attnbench.records.types import Timing


class Clock:
    """Fake of the module ``time``, whose time is set by the test."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        """Return the time in seconds."""
        return self.now_s

    def perf_counter_ns(self) -> int:
        """Return the time in nanoseconds."""
        return int(self.now_s * 1e9)


class Calls:
    """Maker of timed functions with a given duration on the fake clock; it records in which order they are called."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.order: list[str] = []

    def make_call(self, name: str, duration_s: float) -> Callable[[], None]:
        """Make a function that advances the clock by ``duration_s`` and records its name."""

        def call() -> None:
            self.order.append(name)
            self._clock.now_s += duration_s

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Maker of calls on a fake clock. The tests use powers of two as durations, so that sums are exact."""
    clock = Clock()
    monkeypatch.setattr(sampling, "time", clock)
    return Calls(clock)


class Quiet(Scheduler):
    """Fake of the scheduler counters: the first samples have the given waits in ns, and all later samples none."""

    def __init__(self, *waits: int) -> None:
        super().__init__(Path("nowhere"))
        self._waits = list(waits)
        self._total = 0
        self._within = False

    def read(self) -> Reading:
        """Return the sum of the waits so far; every second reading, which is after a call, adds the next wait."""
        self._within = not self._within
        if not self._within and self._waits:
            self._total += self._waits.pop(0)
        return Reading({1: f"1 {self._total} 1".encode()}, 0)


def only(column: Sequence[Sequence[int]]) -> list[int]:
    """Return the samples of the only process; empty if the quantity was not measured."""
    return list(column[0]) if column else []


def run_cycles(calls: Calls, *durations_s: float, budget_s: float, seed: int = 0) -> list[list[str]]:
    """Take samples of functions "0", "1", …; return the names of each cycle in the order of the calls."""
    count = len(durations_s)
    samples = sample_interleaved(
        {str(i): calls.make_call(str(i), duration) for i, duration in enumerate(durations_s)},
        budget_s=budget_s,
        seed=seed,
        scheduler=Quiet(),
    )
    assert len({len(only(sampled.samples_ns)) for sampled in samples.values()}) == 1
    order = calls.order[WARM_UP_CALLS * count :]
    return [order[i : i + count] for i in range(0, len(order), count)]


def test_every_call_is_made_once_a_cycle(calls: Calls) -> None:
    """Each of the three functions is called once in each of the 32 cycles."""
    found = run_cycles(calls, 1 / 8, 1 / 8, 1 / 8, budget_s=12)
    assert len(found) == 32
    assert all(sorted(cycle) == ["0", "1", "2"] for cycle in found)


def test_the_order_within_a_cycle_is_random(calls: Calls) -> None:
    """All six orders of three functions occur within 32 cycles."""
    assert len({tuple(cycle) for cycle in run_cycles(calls, 1 / 8, 1 / 8, 1 / 8, budget_s=12)}) == 6


def test_the_order_follows_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal seeds give equal orders of calls in all cycles; seeds 1 and 2 give different orders."""

    def order(seed: int) -> list[list[str]]:
        clock = Clock()
        monkeypatch.setattr(sampling, "time", clock)
        return run_cycles(Calls(clock), 1 / 8, 1 / 8, 1 / 8, budget_s=12, seed=seed)

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_warm_up_calls_come_first_and_are_not_samples(calls: Calls) -> None:
    """Each function is called three times in a row before the first sample; these calls give no samples."""
    samples = sample_interleaved(
        {"a": calls.make_call("a", 1 / 8), "b": calls.make_call("b", 1 / 8)}, budget_s=2, seed=0, scheduler=Quiet()
    )
    assert {tuple(calls.order[:3]), tuple(calls.order[3:6])} == {("a",) * 3, ("b",) * 3}
    assert Counter(calls.order[6:]) == {"a": 8, "b": 8}
    assert only(samples["a"].samples_ns) == only(samples["b"].samples_ns) == [125_000_000] * 8


def test_the_first_call_is_recorded_separately(calls: Calls) -> None:
    """A slow first call is stored as ``first_call_ns``, and changes neither the samples nor their number."""
    later = calls.make_call("a", 1 / 8)

    def call() -> None:
        if not calls.order:
            calls.make_call("slow", 2)()
        later()

    sampled = sample_interleaved({"a": call}, budget_s=1, seed=0, scheduler=Quiet())["a"]
    assert sampled.first_call_ns == (2_125_000_000,)
    assert only(sampled.samples_ns) == [125_000_000] * 8


def count_samples(
    calls: Calls, durations_s: dict[str, float], *, budget_s: float, baseline: Sequence[str] = ()
) -> dict[str, int]:
    """Take samples of functions with these durations; return the number of samples by name."""
    samples = sample_interleaved(
        {name: calls.make_call(name, duration) for name, duration in durations_s.items()},
        budget_s=budget_s,
        seed=0,
        baseline=baseline,
        scheduler=Quiet(),
    )
    return {name: len(only(sampled.samples_ns)) for name, sampled in samples.items()}


def test_slow_calls_take_part_in_fewer_cycles(calls: Calls) -> None:
    """Each function gets an equal part of the time budget, but at least 5 and at most 200 samples.

    A very slow function has two warm-up calls instead of three.
    """
    durations = {"instant": 0.0, "fast": 1 / 1024, "quick": 1 / 64, "slow": 1 / 8, "slower": 4.0}
    assert count_samples(calls, durations, budget_s=5) == {
        "instant": MOST, "fast": MOST, "quick": 64, "slow": 8, "slower": FEWEST
    }  # fmt: skip
    assert (FEWEST, MOST) == (5, 200)
    assert calls.order.count("slower") == 2 + FEWEST
    assert calls.order.count("slow") == WARM_UP_CALLS + 8


def test_samples_of_a_slow_call_are_spread_over_all_cycles(calls: Calls) -> None:
    """Between two of the eight samples of a slow function, there are 7 to 9 samples of a quick one.

    So a drift of the machine affects the few samples of the slow function as it affects the many of the quick one.
    """
    count_samples(calls, {"quick": 1 / 64, "slow": 1 / 8}, budget_s=2)
    places = [place for place, name in enumerate(calls.order[2 * WARM_UP_CALLS :]) if name == "slow"]
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert len(places) == 8
    assert set(gaps) <= {8, 9, 10}


def test_the_baseline_is_called_in_every_cycle(calls: Calls) -> None:
    """The baseline is called in every cycle, and its part of the budget determines the number of cycles.

    Other functions have at most one sample per cycle.
    """
    durations = {"base": 1 / 16, "fast": 1 / 1024, "slow": 1 / 4, "alike": 1 / 16}
    assert count_samples(calls, durations, budget_s=5, baseline=["base"]) == {
        "base": 20, "fast": 20, "slow": FEWEST, "alike": 20
    }  # fmt: skip
    order = calls.order[4 * WARM_UP_CALLS :]
    for name in ("fast", "alike"):
        between = "".join("|" if one == "base" else "x" for one in order if one in ("base", name))
        assert "xxx" not in between
        assert "|||" not in between


@pytest.mark.parametrize(
    ("budget_s", "pattern"),
    [(1.25, "abbaabbaab"), (2.5, "aabbbbaaaabbbbaaaabb"), (12.5, ("a" * 12 + "b" * 24 + "a" * 12) * 2 + "aaaa")],
)
def test_the_baseline_and_its_copy_are_never_called_in_one_cycle(calls: Calls, budget_s: float, pattern: str) -> None:
    """Each cycle calls "own"; blocks of cycles that also call the baseline alternate with blocks that call its copy.

    A block has one or two cycles if there are few cycles, and an eighth of all cycles if there are many.
    """
    count_samples(calls, {"base": 1 / 16, "copy": 1 / 16, "own": 1 / 16}, budget_s=budget_s, baseline=["base", "copy"])
    order = calls.order[3 * WARM_UP_CALLS :]
    found = [order[i : i + 2] for i in range(0, len(order), 2)]
    assert all("own" in cycle for cycle in found)
    shared = "".join("a" if "base" in cycle else "b" for cycle in found)
    assert shared in (pattern, pattern.translate(str.maketrans("ab", "ba")))


def test_the_baseline_and_its_copy_alternate_in_the_first_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an even seed the baseline is called in the first cycle, with an odd seed its copy.

    The processes of a case have seeds 0, 1, 2, …, so disturbances of first cycles affect baseline and copy equally.
    """

    def find_first(seed: int) -> str:
        clock = Clock()
        monkeypatch.setattr(sampling, "time", clock)
        calls = Calls(clock)
        both = {name: calls.make_call(name, 1 / 16) for name in ("base", "copy")}
        sample_interleaved(both, budget_s=1.0, seed=seed, baseline=list(both), scheduler=Quiet())
        return calls.order[2 * WARM_UP_CALLS]

    assert [find_first(seed) for seed in range(4)] == ["base", "copy"] * 2


def test_a_baseline_that_is_not_timed_has_no_place(calls: Calls) -> None:
    """If the named baseline is not among the functions, every function gets its own part of the budget."""
    assert count_samples(calls, {"own": 1 / 8}, budget_s=1, baseline=["base", "copy"]) == {"own": 8}


def test_a_slow_baseline_has_five_samples(calls: Calls) -> None:
    """A baseline and its copy have five samples each, even if five calls take longer than their part of the budget."""
    assert count_samples(calls, {"base": 4.0, "fast": 1 / 1024}, budget_s=1, baseline=["base"]) == {
        "base": FEWEST, "fast": FEWEST
    }  # fmt: skip
    both = {"base": 4.0, "copy": 4.0}
    assert count_samples(calls, both | {"slow": 4.0, "fast": 1 / 1024}, budget_s=1, baseline=list(both)) == {
        "base": FEWEST, "copy": FEWEST, "slow": FEWEST, "fast": 2 * FEWEST
    }  # fmt: skip


def test_no_more_samples_are_planned_than_the_limit_allows(calls: Calls) -> None:
    """If five samples of each function take longer than ``limit_s``, fewer samples are planned, but at least one."""
    slow = {"base": 4.0, "own": 8.0, "quick": 1 / 1024}
    found = [
        {
            name: len(only(sampled.samples_ns))
            for name, sampled in sample_interleaved(
                {name: calls.make_call(name, duration) for name, duration in slow.items()},
                budget_s=1,
                seed=0,
                limit_s=limit_s,
                baseline=["base"],
                scheduler=Quiet(),
            ).items()
        }
        for limit_s in (60.0, 30.0, 1.0)
    ]
    # One cycle takes 12 s, so 5, 2 and 1 samples are planned. Fewer than five clean calls are too few, so one cycle is
    # added; it takes longer than the budget for added cycles.
    assert found == [dict.fromkeys(slow, 5), dict.fromkeys(slow, 3), dict.fromkeys(slow, 2)]


def sample_with_waits(calls: Calls, *waits: int, budget_s: float = 1.0) -> dict[str, Timing]:
    """Take samples of "base" (the baseline) and "own", both of 1/8 s; the first samples have the given waits in ns."""
    return sample_interleaved(
        {"base": calls.make_call("base", 1 / 8), "own": calls.make_call("own", 1 / 8)},
        budget_s=budget_s,
        seed=0,
        baseline=["base"],
        scheduler=Quiet(*waits),
    )


def test_waits_are_recorded_with_every_sample(calls: Calls) -> None:
    """Every sample has the time that threads waited for a core (``waited_ns``) and the number of ``switches``."""
    samples = sample_with_waits(calls, 7, 0, 9)
    assert sorted(only(samples["base"].waited_ns) + only(samples["own"].waited_ns))[-3:] == [0, 7, 9]
    for sampled in samples.values():
        assert len(only(sampled.waited_ns)) == len(only(sampled.switches)) == len(only(sampled.samples_ns)) == FEWEST


def test_a_system_without_counters_gives_samples_without_them(calls: Calls) -> None:
    """Without counters, ``waited_ns`` and ``switches`` are empty lists: zeros would mean that no thread waited."""
    uncounted = Scheduler(Path("nowhere"))
    uncounted.counts_switches = False
    sampled = sample_interleaved({"a": calls.make_call("a", 1 / 8)}, budget_s=1, seed=0, scheduler=uncounted)["a"]
    assert (len(only(sampled.samples_ns)), only(sampled.waited_ns), only(sampled.switches)) == (8, [], [])
    assert any(select_clean_calls(sampled))


def test_cycles_are_added_if_other_work_disturbed_too_many(calls: Calls) -> None:
    """If calls waited for a core, cycles are added until each function has at least five clean calls.

    At least half of its calls must be clean, too.
    """
    samples = sample_with_waits(calls, *[10**8] * 4)
    assert {name: len(only(sampled.samples_ns)) for name, sampled in samples.items()} == {"base": 7, "own": 7}
    assert all(any(select_clean_calls(sampled)) for sampled in samples.values())


def test_added_cycles_call_only_the_baseline_or_its_copy_if_only_one_is_short(calls: Calls) -> None:
    """If only one of baseline and copy has too few clean calls, the added cycles call that one and not the other."""
    both = ("base", "copy")
    samples = sample_interleaved(
        {name: calls.make_call(name, 1 / 8) for name in (*both, "own")},
        budget_s=2.5,
        seed=0,
        baseline=both,
        scheduler=Quiet(10**8, 10**8),
    )
    assert all(any(select_clean_calls(sampled)) for sampled in samples.values())
    assert sorted(len(only(sampled.samples_ns)) for sampled in samples.values()) == [FEWEST, FEWEST + 1, 2 * FEWEST]


def test_added_cycles_take_at_most_the_same_time_again(calls: Calls) -> None:
    """If every call waits for a core, as many cycles are added as were planned, so that the run ends.

    This holds even if the planned cycles took longer than ``budget_s``, because the calls are slow.
    """
    samples = sample_with_waits(calls, *[10**8] * 100, budget_s=0.5)
    assert {name: len(only(sampled.samples_ns)) for name, sampled in samples.items()} == {"base": 10, "own": 10}
    assert not any(any(select_clean_calls(sampled)) for sampled in samples.values())


@pytest.mark.parametrize(("until_s", "added"), [(math.inf, 8), (28.0, 7), (20.0, 5)])
def test_added_cycles_of_slow_calls_end_with_the_time(calls: Calls, until_s: float, added: int) -> None:
    """Added cycles take as long as the planned ones took, 15 s, and end at ``until_s``, but not before ``budget_s``."""
    samples = sample_interleaved(
        {"base": calls.make_call("base", 1 / 8), "own": calls.make_call("own", 2.0)},
        budget_s=10.0,
        until_s=until_s,
        seed=0,
        baseline=["base"],
        scheduler=Quiet(*[10**10] * 100),
    )
    assert len(only(samples["own"].samples_ns)) == FEWEST + added


def test_garbage_is_not_collected_while_timing() -> None:
    """Garbage collection is disabled during every sample, and enabled after the last one."""
    collecting: list[bool] = []
    sample_interleaved({"a": lambda: collecting.append(gc.isenabled())}, budget_s=0.0, seed=0)
    assert collecting[-FEWEST:] == [False] * FEWEST
    assert gc.isenabled()


def test_garbage_is_collected_again_after_an_exception() -> None:
    """If a call raises, garbage collection is enabled again.

    CallFailed names the function and has the call's exception as its cause.
    """
    made: list[bool] = []

    def fifth_raises() -> None:
        made.append(gc.isenabled())
        if len(made) == 5:
            raise ValueError("the fifth")

    with pytest.raises(CallFailed, match="the call of a raised") as raised:
        sample_interleaved({"a": fifth_raises}, budget_s=60, seed=0)
    assert raised.value.name == "a"
    assert str(raised.value.__cause__) == "the fifth"
    assert made == [True, True, True, False, False]
    assert gc.isenabled()


def test_a_call_that_raises_during_warm_up_is_named() -> None:
    """Any exception of a warm-up call, here SystemExit, becomes a CallFailed that names the function."""

    def exit_process() -> None:
        raise SystemExit

    with pytest.raises(CallFailed) as raised:
        sample_interleaved({"a": lambda: None, "b": exit_process}, budget_s=60, seed=0)
    assert raised.value.name == "b"


def test_the_result_of_a_call_is_freed_before_the_next() -> None:
    """At most one result of a call is alive at any time, so that no result takes memory while a later call is timed."""

    class Result:
        alive = 0

        def __init__(self) -> None:
            Result.alive += 1
            most.append(Result.alive)

        def __del__(self) -> None:
            Result.alive -= 1

    most: list[int] = []
    sample_interleaved({"a": Result, "b": Result}, budget_s=0.0, seed=0)
    assert max(most) == 1


class Device(Timer):
    """Fake of the timing on a device, for the functions ``names``: a call that it times takes 1/16 s.

    ``clock_mhz`` are the readings of the GPU clock, two per cycle; the last reading is repeated.
    """

    def __init__(self, calls: Calls, names: Collection[str], *, clock_mhz: Collection[int] = (1980,)) -> None:
        self._calls = calls
        self._names = names
        self._clock_mhz = list(clock_mhz)
        self.source = "NVML" if clock_mhz else "none: no NVML"
        self.late: list[bool | None] = []
        self.calibrated: list[str] = []
        self.graphs: Collection[str] = ()
        self.pauses = 0
        self.clocks = self  # type: ignore[assignment]

    def __contains__(self, name: str) -> bool:
        """Return whether the device times the function of this name."""
        return name in self._names

    def calibrate(self, name: str) -> None:
        """Record that the function of this name is calibrated."""
        self.calibrated.append(name)

    def take_sample(self, name: str) -> DeviceSample:
        """Make a call of 1/16 s, and return a sample with a device time of half a millisecond."""
        self._calls.make_call(f"{name} on device", 1 / 16)()
        late = self.late.pop(0) if self.late else False
        return DeviceSample(device_ns=500_000, late=late, graph_ns=400_000 if name in self.graphs else None)

    def pause(self) -> None:
        """Count the call."""
        self.pauses += 1

    def describe_method(self, name: str) -> str:
        """Return a method of timing that contains the name."""
        return f"device of {name}"

    def read(self) -> ClockReading | None:
        """Return the next reading of the GPU clock; below 1500 MHz it is throttled by a power limit (reason 0x4)."""
        if not self._clock_mhz:
            return None
        mhz = self._clock_mhz.pop(0) if len(self._clock_mhz) > 1 else self._clock_mhz[0]
        return ClockReading(mhz, 0x4 if mhz < 1500 else 0)


def sample_on_device(calls: Calls, device: Device, names: str = "ab", *, budget_s: float = 3.0) -> dict[str, Timing]:
    """Take samples of calls of 1/8 s, one call for each letter of ``names``."""
    return sample_interleaved(
        {name: calls.make_call(name, 1 / 8) for name in names},
        budget_s=budget_s,
        seed=0,
        baseline=["a"],
        scheduler=Quiet(),
        timer=device,
    )


def test_a_sample_on_a_device_is_two_consecutive_calls_in_random_order(calls: Calls) -> None:
    """A sample is one call timed from end to end and one call timed by the device; either of them comes first."""
    device = Device(calls, "ab")
    samples = sample_on_device(calls, device)
    # A sample takes 1/8 + 1/16 = 3/16 s, and the budget of each function is 1.5 s.
    assert {len(only(column)) for s in samples.values() for column in (s.samples_ns, s.device_ns, s.late)} == {8}
    assert sorted(device.calibrated) == ["a", "b"]
    order = calls.order[2 * WARM_UP_CALLS + 4 :]
    pairs = [tuple(order[i : i + 2]) for i in range(0, len(order), 2)]
    assert set(pairs) == {("a", "a on device"), ("a on device", "a"), ("b", "b on device"), ("b on device", "b")}
    assert device.pauses == len(pairs)
    assert samples["a"].method == "device of a"
    assert {tuple(only(s.graph_ns)) for s in samples.values()} == {()}


def test_a_graph_is_timed_in_the_same_sample(calls: Calls) -> None:
    """A function with a captured graph has a graph time in every sample; one without a graph has none."""
    device = Device(calls, "ab")
    device.graphs = "b"
    samples = sample_on_device(calls, device)
    assert (only(samples["a"].graph_ns), only(samples["b"].graph_ns)) == ([], [400_000] * 8)


def test_a_call_that_the_device_does_not_time_has_wall_times(calls: Calls) -> None:
    """A function that the device does not time has only wall times; its method is "end-to-end wall"."""
    samples = sample_on_device(calls, Device(calls, "a"))
    assert (len(only(samples["b"].samples_ns)), only(samples["b"].device_ns), only(samples["b"].late)) == (8, [], [])
    assert samples["b"].method == "end-to-end wall"
    assert "b on device" not in calls.order


def test_all_samples_of_a_cycle_have_its_clock_readings(calls: Calls) -> None:
    """Every sample has the clock readings before and after its cycle, and the throttle reasons of these readings."""
    samples = sample_on_device(calls, Device(calls, "a", clock_mhz=[1980, 1980, 1980, 1410, 1980]))
    for sampled in samples.values():
        assert only(sampled.clock_before_mhz) == [1980] * 8
        assert only(sampled.clock_after_mhz) == [1980, 1410, *[1980] * 6]
        assert only(sampled.throttle_reasons) == [0, 4, *[0] * 6]
        assert sampled.clock == "NVML"


def test_cycles_are_added_if_too_many_were_throttled(calls: Calls) -> None:
    """If cycles were throttled, cycles are added until at least half of the samples, and at least five, are clean."""
    device = Device(calls, "ab", clock_mhz=[1410] * 10 + [1980])
    samples = sample_on_device(calls, device)
    assert len(only(samples["a"].device_ns)) == 10
    assert all(any(select_clean_calls(sampled)) for sampled in samples.values())


def test_cycles_are_added_for_late_samples(calls: Calls) -> None:
    """Late samples, whose device time includes a part of the launch, are not clean; cycles are added for them."""
    device = Device(calls, "a")
    # The False is for the sample before the first cycle, which only measures how long a sample takes.
    device.late = [False, *[True] * 5]
    samples = sample_on_device(calls, device, "a", budget_s=1.5)
    assert only(samples["a"].late) == [True] * 5 + [False] * 5
    assert any(select_clean_calls(samples["a"]))


def test_without_hidden_launches_no_sample_is_late(calls: Calls) -> None:
    """If the device cannot say whether a sample was late, the list ``late`` is empty."""
    device = Device(calls, "a")
    device.late = [None] * 100
    samples = sample_on_device(calls, device, "a", budget_s=1.5)
    assert (len(only(samples["a"].device_ns)), only(samples["a"].late)) == (8, [])


def test_calls_are_timed_without_clock_readings(calls: Calls) -> None:
    """Without clock readings, the lists of clocks and throttle reasons are empty, and all samples count as clean."""
    samples = sample_on_device(calls, Device(calls, "ab", clock_mhz=()))
    assert samples["a"].clock == "none: no NVML"
    assert (
        only(samples["a"].clock_before_mhz),
        only(samples["a"].clock_after_mhz),
        only(samples["a"].throttle_reasons),
    ) == ([], [], [])
    assert any(select_clean_calls(samples["a"]))


@pytest.mark.parametrize("fails_at", [1, 5])
def test_a_call_that_raises_on_a_device_is_named(calls: Calls, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    """A call that raises on a device, in its first or in its fifth sample, becomes a CallFailed that names it."""
    device = Device(calls, "ab")
    made: list[str] = []

    def take(name: str) -> DeviceSample:
        made.append(name)
        if name == "b" and made.count("b") == fails_at:
            raise RuntimeError("CUDA error")
        return Device.take_sample(device, name)

    monkeypatch.setattr(device, "take_sample", take)
    with pytest.raises(CallFailed) as raised:
        sample_on_device(calls, device)
    assert raised.value.name == "b"
    assert str(raised.value.__cause__) == "CUDA error"
    assert gc.isenabled()
