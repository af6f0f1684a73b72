"""Samples of calls in nanoseconds, taken in turns: whatever the machine does meets every implementation alike."""

import gc
import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from attnbench.scheduler import Reading, Scheduler, clean
from attnbench.stats import CLEAN_CALLS, CLEAN_OF_ALL

__all__ = ["Broken", "Samples", "interleaved", "take"]

Calls = Mapping[str, Callable[[], object]]
# Calls of each implementation before the first sample; the first call costs 7 to 13 % more, later ones settle by the
# third.
WARM_UP_CALLS = 3
# Samples of each implementation in one process: at least these, however slow, as fewer would not count; and at most
# those, however fast.
FEWEST, MOST = CLEAN_CALLS, 200
# Cycles after which threads are looked for that began meanwhile; most begin with the first call.
WATCHED_EVERY = 8


class Broken(Exception):
    """A call raised; what it raised is the cause."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the call of {name} raised")
        self.name = name


@dataclass(slots=True, kw_only=True)
class Samples:
    """One number per call, in the order of the calls, and what the first call of all took.

    Unit: nanoseconds of wall time, nanoseconds that the process's threads waited for a core meanwhile, number of times
    that one of them lost its core, and number of the cycle. The counters are empty where the system does not have them.
    """

    times_ns: list[int] = field(default_factory=list)
    waited_ns: list[int] = field(default_factory=list)
    switches: list[int] = field(default_factory=list)
    cycles: list[int] = field(default_factory=list)
    first_call_ns: int = 0

    def clean_ns(self) -> list[int]:
        """Times of the calls that nothing disturbed."""
        waits: Sequence[int | None] = self.waited_ns or [None] * len(self.times_ns)
        switches: Sequence[int | None] = self.switches or [None] * len(self.times_ns)
        return [t for t, w, s in zip(self.times_ns, waits, switches, strict=True) if clean(t, w, s)]

    def enough(self) -> bool:
        """Whether the calls that nothing disturbed are as many as it takes to count."""
        undisturbed = len(self.clean_ns())
        return undisturbed >= CLEAN_CALLS and undisturbed >= CLEAN_OF_ALL * len(self.times_ns)


def interleaved(
    calls: Calls,
    *,
    budget_s: float,
    seed: int,
    limit_s: float = math.inf,
    throughout: Collection[str] = (),
    scheduler: Scheduler | None = None,
) -> dict[str, Samples]:
    """Samples of every call, in cycles that make each call once in random order.

    The budget is shared evenly; a slow call takes part in fewer cycles than a quick one, spread over all of them. Those
    named by ``throughout`` take part in every cycle, and their share says how many there are. Where other work
    disturbed too many calls, cycles are added for as much time again. No more is planned than ``limit_s`` allows, even
    if it is too little for a verdict. Only the call is timed: garbage collection is off in the window, and scheduler
    counters are read outside it.

    Raises: Broken where a call raises.
    """
    samples = {name: Samples() for name in calls}
    order = random.Random(seed)  # noqa: S311  # the order of calls, no secret
    names = list(calls)
    order.shuffle(names)
    share_s = budget_s / len(calls)
    quickest_ns = {name: _warmed_up(name, calls[name], samples[name], share_s) for name in names}
    rounds = _rounds(quickest_ns, share_s, limit_s)
    watcher = scheduler or Scheduler()
    take = _Taking(calls, samples, watcher, order)
    cycles = max(rounds[name] for name in (throughout or calls))
    rounds |= {name: cycles if name in throughout else min(rounds[name], cycles) for name in calls}
    gc.collect()
    gc.disable()
    try:
        for cycle in range(cycles):
            take.cycle([name for name in calls if _has_turn(cycle, rounds[name], cycles)])
        end = time.perf_counter() + min(budget_s, limit_s / 2)
        for _ in range(cycles):
            take.understand()
            short = {name for name in calls if not samples[name].enough()}
            if not short or time.perf_counter() >= end:
                break
            # What is short is one side of a ratio; the other side goes along.
            take.cycle([name for name in calls if name in short or name in throughout])
        take.understand()
    finally:
        gc.enable()
        watcher.close()
    return samples


def take(name: str, call: Callable[[], object], samples: Samples) -> None:
    """One sample more, by itself.

    Raises: Broken where the call raises.
    """
    scheduler = Scheduler()
    taking = _Taking({name: call}, {name: samples}, scheduler, random.Random(0))  # noqa: S311  # one call has no order
    taking.cycle([name])
    taking.understand()
    scheduler.close()


def _has_turn(cycle: int, turns: int, cycles: int) -> bool:
    """Whether one of so many turns, spread evenly over so many cycles, falls into this one."""
    return (cycle + 1) * turns // cycles > cycle * turns // cycles


def _rounds(quickest_ns: Mapping[str, int], share_s: float, limit_s: float) -> dict[str, int]:
    """Samples of each call that its share of the budget allows; the fewest of all, if the limit allows those."""
    fewest = max(1, int(min(FEWEST, limit_s * 1e9 / max(sum(quickest_ns.values()), 1))))
    return {
        name: max(fewest, min(MOST, int(share_s * 1e9) // max(took_ns, 1))) for name, took_ns in quickest_ns.items()
    }


def _warmed_up(name: str, call: Callable[[], object], samples: Samples, budget_s: float) -> int:
    """Time of the quickest of a few calls, in nanoseconds; of two where both take more than the budget.

    Not of one: the first may have compiled, and says nothing of the next.
    """
    took_ns: list[int] = []
    while len(took_ns) < 2 or (len(took_ns) < WARM_UP_CALLS and min(took_ns) <= budget_s * 1e9):
        begin = time.perf_counter_ns()
        try:
            call()
        except BaseException as error:
            raise Broken(name) from error
        took_ns.append(time.perf_counter_ns() - begin)
    samples.first_call_ns = took_ns[0]
    return min(took_ns)


@dataclass(slots=True)
class _Taking:
    """Takes samples, cycle by cycle."""

    calls: Calls
    samples: dict[str, Samples]
    scheduler: Scheduler
    order: random.Random
    # Counters before and after each call that are not understood yet, with the samples that they belong to.
    readings: list[tuple[Samples, Reading, Reading]] = field(default_factory=list)
    cycles: int = 0

    def cycle(self, turn: list[str]) -> None:
        """Each of these calls once."""
        if not self.cycles % WATCHED_EVERY:
            self.scheduler.watch()
        self.cycles += 1
        self.order.shuffle(turn)
        for name in turn:
            self._take(name)

    def understand(self) -> None:
        """Put what the counters say beside the samples; not between two calls, as it would disturb the second."""
        for samples, before, after in self.readings:
            waited, switches = after.waited_since(before), after.switches_since(before)
            if waited is not None:
                samples.waited_ns.append(waited)
            if switches is not None:
                samples.switches.append(switches)
        self.readings.clear()

    def _take(self, name: str) -> None:
        call, samples, clock = self.calls[name], self.samples[name], time.perf_counter_ns
        before = self.scheduler.read()
        begin = clock()
        try:
            result = call()
        except BaseException as error:
            raise Broken(name) from error
        end = clock()
        self.readings.append((samples, before, self.scheduler.read()))
        samples.times_ns.append(end - begin)
        samples.cycles.append(self.cycles)
        del result  # freed outside the window
