"""Samples of calls in nanoseconds, taken in turns: whatever the machine does meets every implementation alike."""

import gc
import math
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnbench import clocks
from attnbench.devicetime import DeviceTime
from attnbench.records import COUNTED, Timing
from attnbench.scheduler import Reading, Scheduler
from attnbench.stats import CLEAN_CALLS, clean_calls

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
    """One number per turn, in the order of the turns, and what the first call of all took.

    Unit: nanoseconds of wall time, nanoseconds that the process's threads waited for a core meanwhile, number of times
    that one of them lost its core, and number of the cycle. What is not counted here, or not timed by a device, is
    empty: the fields are those of a Timing.
    """

    times_ns: list[int] = field(default_factory=list)
    waited_ns: list[int] = field(default_factory=list)
    switches: list[int] = field(default_factory=list)
    cycles: list[int] = field(default_factory=list)
    device_ns: list[int] = field(default_factory=list)
    graph_ns: list[int] = field(default_factory=list)
    late: list[bool] = field(default_factory=list)
    clock_before_mhz: list[int] = field(default_factory=list)
    clock_after_mhz: list[int] = field(default_factory=list)
    throttle_reasons: list[int] = field(default_factory=list)
    first_call_ns: int = 0
    # How the times were taken, and where the readings of a device's clock come from.
    method: str = "wall"
    clock: str = ""

    def enough(self) -> bool:
        """Whether the calls that nothing disturbed are as many as it takes to count."""
        counted: dict[str, Any] = {name: (tuple(getattr(self, name)),) for name in COUNTED}
        return any(clean_calls(Timing(samples_ns=(tuple(self.times_ns),), threads=0, **counted)))


def interleaved(
    calls: Calls,
    *,
    budget_s: float,
    seed: int,
    limit_s: float = math.inf,
    throughout: Collection[str] = (),
    scheduler: Scheduler | None = None,
    device: DeviceTime | None = None,
) -> dict[str, Samples]:
    """Samples of every call, in cycles in which each has one turn, in random order.

    A turn is one call from end to end, and with a ``device`` one more that the device times, either of them first.

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
    turns_ns = {name: _warmed_up(name, calls[name], samples[name], share_s) for name in names}
    if device is not None:
        turns_ns = {name: _settled(name, calls[name], samples[name], device, turns_ns[name]) for name in names}
    rounds = _rounds(turns_ns, share_s, limit_s)
    watcher = scheduler or Scheduler()
    take = _Taking(calls, samples, watcher, order, device)
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


def _rounds(turns_ns: Mapping[str, int], share_s: float, limit_s: float) -> dict[str, int]:
    """Samples of each call that its share of the budget allows; the fewest of all, if the limit allows those."""
    fewest = max(1, int(min(FEWEST, limit_s * 1e9 / max(sum(turns_ns.values()), 1))))
    return {name: max(fewest, min(MOST, int(share_s * 1e9) // max(took_ns, 1))) for name, took_ns in turns_ns.items()}


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


def _settled(name: str, call: Callable[[], object], samples: Samples, device: DeviceTime, call_ns: int) -> int:
    """Nanoseconds of a whole turn of a call on a device, which knows from now on how to time it.

    Of a call that the device does not time, those of the call alone.
    """
    samples.clock = device.clocks.source
    if name not in device:
        samples.method = "end-to-end wall"
        return call_ns
    try:
        device.settle(name)
        begin = time.perf_counter_ns()
        call()
        device.take(name)
    except BaseException as error:
        raise Broken(name) from error
    samples.method = device.method(name)
    return time.perf_counter_ns() - begin


@dataclass(slots=True)
class _Taking:
    """Takes samples, cycle by cycle."""

    calls: Calls
    samples: dict[str, Samples]
    scheduler: Scheduler
    order: random.Random
    device: DeviceTime | None = None
    # Counters before and after each call that are not understood yet, with the samples that they belong to.
    readings: list[tuple[Samples, Reading, Reading]] = field(default_factory=list)
    cycles: int = 0

    def cycle(self, turn: list[str]) -> None:
        """Each of these calls once."""
        if not self.cycles % WATCHED_EVERY:
            self.scheduler.watch()
        self.cycles += 1
        self.order.shuffle(turn)
        if self.device is None:
            for name in turn:
                self._take(name)
        else:
            self._cycle_on(self.device, turn)

    def _cycle_on(self, device: DeviceTime, turn: list[str]) -> None:
        """Each of these calls on a device, between two looks at its clock."""
        before = device.clocks.read()
        for name in turn:
            device.pause()
            takes: list[Callable[[str], None]] = [self._take]
            if name in device:
                takes.append(self._take_on_device)
            self.order.shuffle(takes)
            for take_one in takes:
                take_one(name)
        after = device.clocks.read()
        if before is not None and after is not None:
            for name in turn:
                _note_clock(self.samples[name], before, after)

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

    def _take_on_device(self, name: str) -> None:
        assert self.device is not None
        try:
            taken = self.device.take(name)
        except BaseException as error:
            raise Broken(name) from error
        samples = self.samples[name]
        samples.device_ns.append(taken.device_ns)
        if taken.late is not None:
            samples.late.append(taken.late)
        if taken.graph_ns is not None:
            samples.graph_ns.append(taken.graph_ns)


def _note_clock(samples: Samples, before: clocks.Reading, after: clocks.Reading) -> None:
    """Put two readings beside the turn that lay between them."""
    samples.clock_before_mhz.append(before.sm_mhz)
    samples.clock_after_mhz.append(after.sm_mhz)
    samples.throttle_reasons.append(before.reasons | after.reasons)
