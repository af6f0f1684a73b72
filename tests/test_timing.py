"""Tests of the order in which calls are timed, on a clock that only the calls move."""

import gc
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from attnbench.measurement import gpu_clocks, sampling
from attnbench.measurement.cuda_timing import DeviceSample, DeviceTime
from attnbench.measurement.sampling import FEWEST, MOST, WARM_UP_CALLS, CallFailed, Samples, sample_interleaved
from attnbench.measurement.scheduler import Reading, Scheduler


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        """Seconds."""
        return self.now_s

    def perf_counter_ns(self) -> int:
        """Nanoseconds."""
        return int(self.now_s * 1e9)


class Calls:
    """Calls that take as long as they say, and the order in which they were made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.order: list[str] = []

    def lasting(self, name: str, duration_s: float) -> Callable[[], None]:
        """A call of some duration."""

        def call() -> None:
            self.order.append(name)
            self._clock.now_s += duration_s

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Calls on a clock of their own; durations are powers of two, so that sums are exact."""
    clock = Clock()
    monkeypatch.setattr(sampling, "time", clock)
    return Calls(clock)


class Quiet(Scheduler):
    """Stands in for the counters of a machine without other work; ``waits`` are told one by one before that."""

    def __init__(self, *waits: int) -> None:
        super().__init__(Path("nowhere"))
        self._waits = list(waits)
        self._total = 0
        self._within = False

    def read(self) -> Reading:
        """A wait appears between two readings."""
        self._within = not self._within
        if not self._within and self._waits:
            self._total += self._waits.pop(0)
        return Reading({1: f"1 {self._total} 1".encode()}, 0)


def cycles(calls: Calls, *durations_s: float, budget_s: float, seed: int = 0) -> list[list[str]]:
    """Order of equally many samples of several calls, cycle by cycle."""
    count = len(durations_s)
    samples = sample_interleaved(
        {str(i): calls.lasting(str(i), duration) for i, duration in enumerate(durations_s)},
        budget_s=budget_s,
        seed=seed,
        scheduler=Quiet(),
    )
    assert len({len(taken.times_ns) for taken in samples.values()}) == 1
    order = calls.order[WARM_UP_CALLS * count :]
    return [order[i : i + count] for i in range(0, len(order), count)]


def test_every_call_is_made_once_a_cycle(calls: Calls) -> None:
    """No call is made again before each other one had its turn."""
    found = cycles(calls, 1 / 8, 1 / 8, 1 / 8, budget_s=12)
    assert len(found) == 32
    assert all(sorted(cycle) == ["0", "1", "2"] for cycle in found)


def test_the_order_within_a_cycle_is_random(calls: Calls) -> None:
    """Every order of three calls comes up in 32 cycles; no place in the cycle belongs to anyone."""
    assert len({tuple(cycle) for cycle in cycles(calls, 1 / 8, 1 / 8, 1 / 8, budget_s=12)}) == 6


def test_the_order_follows_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed gives the same order, another seed another one."""

    def order(seed: int) -> list[list[str]]:
        clock = Clock()
        monkeypatch.setattr(sampling, "time", clock)
        return cycles(Calls(clock), 1 / 8, 1 / 8, 1 / 8, budget_s=12, seed=seed)

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_warm_up_comes_first_and_is_no_sample(calls: Calls) -> None:
    """Each call is made three times in a row before any sample is taken, in an order of the seed's."""
    samples = sample_interleaved(
        {"a": calls.lasting("a", 1 / 8), "b": calls.lasting("b", 1 / 8)}, budget_s=2, seed=0, scheduler=Quiet()
    )
    assert {tuple(calls.order[:3]), tuple(calls.order[3:6])} == {("a",) * 3, ("b",) * 3}
    assert Counter(calls.order[6:]) == {"a": 8, "b": 8}
    assert samples["a"].times_ns == samples["b"].times_ns == [125_000_000] * 8


def test_the_first_call_is_told_apart(calls: Calls) -> None:
    """What is compiled or loaded at the first call shows in no sample and in no number of samples, and is not lost."""
    later = calls.lasting("a", 1 / 8)

    def call() -> None:
        if not calls.order:
            calls.lasting("slow", 2)()
        later()

    taken = sample_interleaved({"a": call}, budget_s=1, seed=0, scheduler=Quiet())["a"]
    assert taken.first_call_ns == 2_125_000_000
    assert taken.times_ns == [125_000_000] * 8


def counts(
    calls: Calls, durations_s: dict[str, float], *, budget_s: float, baseline: Sequence[str] = ()
) -> dict[str, int]:
    """Number of samples of each call."""
    samples = sample_interleaved(
        {name: calls.lasting(name, duration) for name, duration in durations_s.items()},
        budget_s=budget_s,
        seed=0,
        baseline=baseline,
        scheduler=Quiet(),
    )
    return {name: len(taken.times_ns) for name, taken in samples.items()}


def test_slow_calls_take_part_in_fewer_cycles(calls: Calls) -> None:
    """Each call gets an even share of the budget, within 5 and 200 samples; a very slow one is warmed up twice."""
    durations = {"instant": 0.0, "fast": 1 / 1024, "quick": 1 / 64, "slow": 1 / 8, "slower": 4.0}
    assert counts(calls, durations, budget_s=5) == {
        "instant": MOST, "fast": MOST, "quick": 64, "slow": 8, "slower": FEWEST
    }  # fmt: skip
    assert (FEWEST, MOST) == (5, 200)
    assert calls.order.count("slower") == 2 + FEWEST
    assert calls.order.count("slow") == WARM_UP_CALLS + 8


def test_turns_of_a_slow_call_are_spread_over_all_cycles(calls: Calls) -> None:
    """What changes while a process runs meets the few calls of a slow one as it meets the many of a quick one."""
    counts(calls, {"quick": 1 / 64, "slow": 1 / 8}, budget_s=2)
    turns = [place for place, name in enumerate(calls.order[2 * WARM_UP_CALLS :]) if name == "slow"]
    gaps = [after - before for before, after in itertools.pairwise(turns)]
    assert len(turns) == 8
    assert set(gaps) <= {8, 9, 10}


def test_whoever_is_compared_with_takes_part_in_every_cycle(calls: Calls) -> None:
    """The baseline says how many cycles there are; others take part in as many at the most."""
    durations = {"base": 1 / 16, "fast": 1 / 1024, "slow": 1 / 4, "alike": 1 / 16}
    assert counts(calls, durations, budget_s=5, baseline=["base"]) == {
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
def test_those_that_share_a_turn_never_meet(calls: Calls, budget_s: float, pattern: str) -> None:
    """Each cycle has one of the baseline's two, in runs there and back again; to others they are one, as often called.

    Of few cycles each has one or two at a time; of many, an eighth of all.
    """
    counts(calls, {"base": 1 / 16, "twin": 1 / 16, "own": 1 / 16}, budget_s=budget_s, baseline=["base", "twin"])
    order = calls.order[3 * WARM_UP_CALLS :]
    found = [order[i : i + 2] for i in range(0, len(order), 2)]
    assert all("own" in cycle for cycle in found)
    shared = "".join("a" if "base" in cycle else "b" for cycle in found)
    assert shared in (pattern, pattern.translate(str.maketrans("ab", "ba")))


def test_those_that_share_a_turn_begin_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first cycles meet falls to either, over the processes of a case."""

    def first(seed: int) -> str:
        clock = Clock()
        monkeypatch.setattr(sampling, "time", clock)
        calls = Calls(clock)
        both = {name: calls.lasting(name, 1 / 16) for name in ("base", "twin")}
        sample_interleaved(both, budget_s=1.0, seed=seed, baseline=list(both), scheduler=Quiet())
        return calls.order[2 * WARM_UP_CALLS]

    assert [first(seed) for seed in range(4)] == ["base", "twin"] * 2


def test_a_baseline_that_is_not_there_shares_nothing(calls: Calls) -> None:
    """Then all have turns of their own."""
    assert counts(calls, {"own": 1 / 8}, budget_s=1, baseline=["base", "twin"]) == {"own": 8}


def test_a_slow_baseline_has_as_many_cycles_as_anything(calls: Calls) -> None:
    """Five, however little its share of the budget is, and five of each that share a turn."""
    assert counts(calls, {"base": 4.0, "fast": 1 / 1024}, budget_s=1, baseline=["base"]) == {
        "base": FEWEST, "fast": FEWEST
    }  # fmt: skip
    both = {"base": 4.0, "twin": 4.0}
    assert counts(calls, both | {"slow": 4.0, "fast": 1 / 1024}, budget_s=1, baseline=list(both)) == {
        "base": FEWEST, "twin": FEWEST, "slow": FEWEST, "fast": 2 * FEWEST
    }  # fmt: skip


def test_no_more_is_planned_than_the_limit_allows(calls: Calls) -> None:
    """Calls so slow that five of each would outlast the process's time-out are made less often, and once at least."""
    slow = {"base": 4.0, "own": 8.0, "quick": 1 / 1024}
    found = [
        {
            name: len(taken.times_ns)
            for name, taken in sample_interleaved(
                {name: calls.lasting(name, duration) for name, duration in slow.items()},
                budget_s=1,
                seed=0,
                limit_s=limit_s,
                baseline=["base"],
                scheduler=Quiet(),
            ).items()
        }
        for limit_s in (60.0, 30.0, 1.0)
    ]
    # One cycle takes 12 s; where too few calls are clean, one is added.
    assert found == [dict.fromkeys(slow, 5), dict.fromkeys(slow, 3), dict.fromkeys(slow, 2)]


def disturbed(calls: Calls, *waits: int, budget_s: float = 1.0) -> dict[str, Samples]:
    """Samples of a baseline and another call of 1/8 s, where the first calls waited."""
    return sample_interleaved(
        {"base": calls.lasting("base", 1 / 8), "own": calls.lasting("own", 1 / 8)},
        budget_s=budget_s,
        seed=0,
        baseline=["base"],
        scheduler=Quiet(*waits),
    )


def test_waiting_is_told_beside_every_sample(calls: Calls) -> None:
    """Every sample has the time that threads waited for a core meanwhile, and the switches."""
    samples = disturbed(calls, 7, 0, 9)
    assert sorted(samples["base"].waited_ns + samples["own"].waited_ns)[-3:] == [0, 7, 9]
    for taken in samples.values():
        assert len(taken.waited_ns) == len(taken.switches) == len(taken.times_ns) == FEWEST


def test_a_system_without_counters_gives_samples_without_them(calls: Calls) -> None:
    """And no zeros, which would say that nobody waited."""
    silent = Scheduler(Path("nowhere"))
    silent.counts_switches = False
    taken = sample_interleaved({"a": calls.lasting("a", 1 / 8)}, budget_s=1, seed=0, scheduler=silent)["a"]
    assert (len(taken.times_ns), taken.waited_ns, taken.switches) == (8, [], [])
    assert taken.has_enough_clean_calls()


def test_cycles_are_added_where_other_work_disturbed_too_many(calls: Calls) -> None:
    """Until five calls of each, and half of them, were clean."""
    samples = disturbed(calls, *[10**8] * 4)
    assert {name: len(taken.times_ns) for name, taken in samples.items()} == {"base": 7, "own": 7}
    assert all(taken.has_enough_clean_calls() for taken in samples.values())


def test_added_cycles_are_for_whoever_is_short_of_those_that_share_a_turn(calls: Calls) -> None:
    """And the other one, which has enough, waits."""
    both = ("base", "twin")
    taken = sample_interleaved(
        {name: calls.lasting(name, 1 / 8) for name in (*both, "own")},
        budget_s=2.5,
        seed=0,
        baseline=both,
        scheduler=Quiet(10**8, 10**8),
    )
    assert all(samples.has_enough_clean_calls() for samples in taken.values())
    assert sorted(len(samples.times_ns) for samples in taken.values()) == [FEWEST, FEWEST + 1, 2 * FEWEST]


def test_cycles_are_added_for_as_much_time_again_at_the_most(calls: Calls) -> None:
    """A machine that is never quiet does not hold up a run."""
    samples = disturbed(calls, *[10**8] * 100, budget_s=0.5)
    assert {name: len(taken.times_ns) for name, taken in samples.items()} == {"base": 7, "own": 7}
    assert not any(taken.has_enough_clean_calls() for taken in samples.values())


def test_garbage_is_not_collected_while_timing() -> None:
    """Collection is off during every sample and on again afterwards."""
    collecting: list[bool] = []
    sample_interleaved({"a": lambda: collecting.append(gc.isenabled())}, budget_s=0.0, seed=0)
    assert collecting[-FEWEST:] == [False] * FEWEST
    assert gc.isenabled()


def test_garbage_is_collected_again_after_an_exception() -> None:
    """A call that raises while it is timed leaves collection on; it is named, and what it raised is the cause."""
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


def test_a_call_that_raises_while_it_is_warmed_up_is_named() -> None:
    """Whatever it raises."""

    def ends() -> None:
        raise SystemExit

    with pytest.raises(CallFailed) as raised:
        sample_interleaved({"a": lambda: None, "b": ends}, budget_s=60, seed=0)
    assert raised.value.name == "b"


def test_the_result_of_a_call_is_freed_before_the_next() -> None:
    """Results do not pile up, so that no call is measured beside the memory of others."""

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


class Device(DeviceTime):
    """Stands in for what times calls on a device: a device call takes half as long, and the clock is told.

    ``clock_mhz`` are its readings, two for each cycle; the last one holds from then on.
    """

    def __init__(self, calls: Calls, names: Collection[str], *, clock_mhz: Collection[int] = (1980,)) -> None:
        self._calls = calls
        self._names = names
        self._clock_mhz = list(clock_mhz)
        self.source = "NVML" if clock_mhz else "none: no NVML"
        self.late: list[bool | None] = []
        self.settled: list[str] = []
        self.graphs: Collection[str] = ()
        self.pauses = 0
        self.clocks = self  # type: ignore[assignment]

    def __contains__(self, name: str) -> bool:
        """Those that were named."""
        return name in self._names

    def calibrate(self, name: str) -> None:
        """Nothing is to be found out."""
        self.settled.append(name)

    def take_sample(self, name: str) -> DeviceSample:
        """Half a millisecond."""
        self._calls.lasting(f"{name} on device", 1 / 16)()
        late = self.late.pop(0) if self.late else False
        return DeviceSample(device_ns=500_000, late=late, graph_ns=400_000 if name in self.graphs else None)

    def pause(self) -> None:
        """Count."""
        self.pauses += 1

    def describe_method(self, name: str) -> str:
        """Of a name."""
        return f"device of {name}"

    def read(self) -> gpu_clocks.Reading | None:
        """The next reading of the clock; 0x4 says that it is held down by power."""
        if not self._clock_mhz:
            return None
        mhz = self._clock_mhz.pop(0) if len(self._clock_mhz) > 1 else self._clock_mhz[0]
        return gpu_clocks.Reading(mhz, 0x4 if mhz < 1500 else 0)


def on_device(calls: Calls, device: Device, names: str = "ab", *, budget_s: float = 3.0) -> dict[str, Samples]:
    """Samples of calls of 1/8 s, of which each is one of the names."""
    return sample_interleaved(
        {name: calls.lasting(name, 1 / 8) for name in names},
        budget_s=budget_s,
        seed=0,
        baseline=["a"],
        scheduler=Quiet(),
        device=device,
    )


def test_a_turn_on_a_device_is_two_calls_either_of_them_first(calls: Calls) -> None:
    """One from end to end, one that the device times; both orders come up, and calls of others never between."""
    device = Device(calls, "ab")
    samples = on_device(calls, device)
    # A turn takes 3/16 s, of 1.5 s for each.
    assert {name: (len(s.times_ns), len(s.device_ns), len(s.late)) for name, s in samples.items()} == {
        "a": (8, 8, 8), "b": (8, 8, 8)
    }  # fmt: skip
    assert sorted(device.settled) == ["a", "b"]
    order = calls.order[2 * WARM_UP_CALLS + 4 :]
    turns = [tuple(order[i : i + 2]) for i in range(0, len(order), 2)]
    assert set(turns) == {("a", "a on device"), ("a on device", "a"), ("b", "b on device"), ("b on device", "b")}
    assert device.pauses == len(turns)
    assert samples["a"].method == "device of a"
    assert {tuple(s.graph_ns) for s in samples.values()} == {()}


def test_a_graph_is_timed_beside_the_call(calls: Calls) -> None:
    """Where there is one, in the same turn."""
    device = Device(calls, "ab")
    device.graphs = "b"
    samples = on_device(calls, device)
    assert (samples["a"].graph_ns, samples["b"].graph_ns) == ([], [400_000] * 8)


def test_what_the_device_does_not_time_is_timed_from_end_to_end(calls: Calls) -> None:
    """And says so."""
    samples = on_device(calls, Device(calls, "a"))
    assert (len(samples["b"].times_ns), samples["b"].device_ns, samples["b"].late) == (8, [], [])
    assert samples["b"].method == "end-to-end wall"
    assert "b on device" not in calls.order


def test_a_throttled_cycle_is_marked_for_all_alike(calls: Calls) -> None:
    """Every turn has the readings around its cycle, and the reasons of both."""
    samples = on_device(calls, Device(calls, "a", clock_mhz=[1980, 1980, 1980, 1410, 1980]))
    for taken in samples.values():
        assert taken.clock_before_mhz == [1980] * 8
        assert taken.clock_after_mhz == [1980, 1410, *[1980] * 6]
        assert taken.throttle_reasons == [0, 4, *[0] * 6]
        assert taken.clock == "NVML"


def test_cycles_are_added_where_too_many_were_throttled(calls: Calls) -> None:
    """As where other work disturbed them: until half of the turns count, five at least."""
    device = Device(calls, "ab", clock_mhz=[1410] * 10 + [1980])
    samples = on_device(calls, device)
    assert len(samples["a"].device_ns) == 10
    assert all(taken.has_enough_clean_calls() for taken in samples.values())


def test_turns_of_which_the_launch_showed_are_made_up_for(calls: Calls) -> None:
    """A time that has a part of the launch in it is none of the device."""
    device = Device(calls, "a")
    # The first is that of the turn by which the cost of a turn is known.
    device.late = [False, *[True] * 5]
    samples = on_device(calls, device, "a", budget_s=1.5)
    assert samples["a"].late == [True] * 5 + [False] * 5
    assert samples["a"].has_enough_clean_calls()


def test_where_no_launch_can_be_hidden_nothing_is_late(calls: Calls) -> None:
    """The column is empty, as it says nothing."""
    device = Device(calls, "a")
    device.late = [None] * 100
    samples = on_device(calls, device, "a", budget_s=1.5)
    assert (len(samples["a"].device_ns), samples["a"].late) == (8, [])


def test_a_machine_without_readings_says_so_and_times_all_the_same(calls: Calls) -> None:
    """No zeros, which would mark every cycle."""
    samples = on_device(calls, Device(calls, "ab", clock_mhz=()))
    assert samples["a"].clock == "none: no NVML"
    assert (samples["a"].clock_before_mhz, samples["a"].clock_after_mhz, samples["a"].throttle_reasons) == ([], [], [])
    assert samples["a"].has_enough_clean_calls()


@pytest.mark.parametrize("fails_at", [1, 5])
def test_a_call_that_raises_on_a_device_is_named(calls: Calls, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    """While its cost is found out, and later."""
    device = Device(calls, "ab")
    made: list[str] = []

    def take(name: str) -> DeviceSample:
        made.append(name)
        if name == "b" and made.count("b") == fails_at:
            raise RuntimeError("CUDA error")
        return Device.take_sample(device, name)

    monkeypatch.setattr(device, "take_sample", take)
    with pytest.raises(CallFailed) as raised:
        on_device(calls, device)
    assert raised.value.name == "b"
    assert str(raised.value.__cause__) == "CUDA error"
    assert gc.isenabled()
