"""Tests of the order in which calls are timed, on a clock that only the calls move."""

import gc
from collections import Counter
from collections.abc import Callable

import pytest

from attnbench import timing
from attnbench.timing import FEWEST, MOST, WARM_UP_CALLS, interleaved


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
    monkeypatch.setattr(timing, "time", clock)
    return Calls(clock)


def cycles(calls: Calls, *durations_s: float, budget_s: float, seed: int = 0) -> list[list[str]]:
    """Order of equally many samples of several calls, cycle by cycle."""
    count = len(durations_s)
    samples = interleaved(
        {str(i): calls.lasting(str(i), duration) for i, duration in enumerate(durations_s)},
        budget_s=budget_s,
        seed=seed,
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
        monkeypatch.setattr(timing, "time", clock)
        return cycles(Calls(clock), 1 / 8, 1 / 8, 1 / 8, budget_s=12, seed=seed)

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_warm_up_comes_first_and_is_no_sample(calls: Calls) -> None:
    """Each call is made three times in a row before any sample is taken."""
    samples = interleaved({"a": calls.lasting("a", 1 / 4), "b": calls.lasting("b", 1 / 4)}, budget_s=2, seed=0)
    assert calls.order[:6] == ["a", "a", "a", "b", "b", "b"]
    assert Counter(calls.order[6:]) == {"a": 4, "b": 4}
    assert samples["a"].times_ns == samples["b"].times_ns == [250_000_000] * 4


def test_slow_calls_take_part_in_fewer_cycles(calls: Calls) -> None:
    """Each call gets an even share of the budget, within 3 and 200 samples; a very slow one is warmed up once."""
    durations = {"instant": 0.0, "fast": 1 / 1024, "quick": 1 / 64, "slow": 1 / 4, "slower": 4.0}
    samples = interleaved({n: calls.lasting(n, s) for n, s in durations.items()}, budget_s=5, seed=0)
    counts = {name: len(taken.times_ns) for name, taken in samples.items()}
    assert counts == {"instant": MOST, "fast": MOST, "quick": 64, "slow": 4, "slower": FEWEST}
    assert (FEWEST, MOST) == (3, 200)
    assert calls.order.count("slower") == 1 + FEWEST
    assert calls.order.count("slow") == WARM_UP_CALLS + 4


def test_waiting_is_told_beside_every_sample(calls: Calls) -> None:
    """Every sample has the time that threads waited for a core meanwhile."""
    samples = interleaved({"a": calls.lasting("a", 1 / 4)}, budget_s=2, seed=0)["a"]
    assert len(samples.waited_ns) == len(samples.times_ns) == 8
    assert min(samples.waited_ns) >= 0


def test_garbage_is_not_collected_while_timing() -> None:
    """Collection is off during every sample and on again afterwards."""
    collecting: list[bool] = []
    interleaved({"a": lambda: collecting.append(gc.isenabled())}, budget_s=0.0, seed=0)
    assert collecting[-FEWEST:] == [False] * FEWEST
    assert gc.isenabled()


def test_garbage_is_collected_again_after_an_exception() -> None:
    """A call that raises while it is timed leaves collection on, and its exception comes through."""
    made: list[bool] = []

    def fifth_raises() -> None:
        made.append(gc.isenabled())
        if len(made) == 5:
            raise ValueError("the fifth")

    with pytest.raises(ValueError, match="the fifth"):
        interleaved({"a": fifth_raises}, budget_s=60, seed=0)
    assert made == [True, True, True, False, False]
    assert gc.isenabled()


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
    interleaved({"a": Result, "b": Result}, budget_s=0.0, seed=0)
    assert max(most) == 1
