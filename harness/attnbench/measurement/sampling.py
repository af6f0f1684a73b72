"""Samples of calls in nanoseconds, taken in turns: whatever the machine does meets every implementation alike."""

import gc
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnbench.analysis.stats import CLEAN_CALLS, clean_calls
from attnbench.measurement import gpu_clocks
from attnbench.measurement.cuda_timing import DeviceTime
from attnbench.measurement.scheduler import Reading, Scheduler
from attnbench.records.types import COUNTED, Timing

__all__ = ["Broken", "Samples", "interleaved", "take"]

Calls = Mapping[str, Callable[[], object]]
# Calls of each implementation before the first sample; the first call costs 7 to 13 % more, later ones settle by the
# third.
WARM_UP_CALLS = 3
# Samples of each implementation in one process: at least these, however slow, as fewer would not count; and at most
# those, however fast.
FEWEST, MOST = CLEAN_CALLS, 200
# Runs of cycles in which those that share a turn relieve one another. Who returns after a cycle or two finds its
# numbers gone from the caches: 0.4 to 1.7 % of calls of 0.15 to 0.9 ms, where runs of 25 cycles leave 0.5 % at most.
RUNS = 8
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
    baseline: Sequence[str] = (),
    scheduler: Scheduler | None = None,
    device: DeviceTime | None = None,
) -> dict[str, Samples]:
    """Samples of every call, in cycles in which each has one turn, in random order.

    A turn is one call from end to end, and with a ``device`` one more that the device times, either of them first.

    The budget is shared evenly; a slow call takes part in fewer cycles than a quick one, spread over all of them. Those
    named by ``baseline`` share one turn, which every cycle has, and its share says how many cycles there are. They do
    not meet in a cycle: what is called twice as often as others finds its code and its numbers in the caches, and was
    seen to gain 3 to 4 % of a call of 0.4 ms by that. Where other work disturbed too many calls, cycles are added for
    as much time again. No more is planned than ``limit_s`` allows, even if it is too little for a verdict. Only the
    call is timed: garbage collection is off in the window, and scheduler counters are read outside it.

    Raises: Broken where a call raises.
    """
    samples = {name: Samples() for name in calls}
    order = random.Random(seed)  # noqa: S311  # the order of calls, no secret
    names = list(calls)
    order.shuffle(names)
    # In one process the one begins, in the next the other.
    sharing = [name for name in (*baseline[seed % 2 :], *baseline[: seed % 2]) if name in calls]
    share_s = budget_s / (len(calls) - max(0, len(sharing) - 1))
    turns_ns = {name: _warmed_up(name, calls[name], samples[name], share_s) for name in names}
    if device is not None:
        turns_ns = {name: _settled(name, calls[name], samples[name], device, turns_ns[name]) for name in names}
    plan = _Plan.of({name: turns_ns[name] for name in calls}, sharing, share_s=share_s, limit_s=limit_s)
    watcher = scheduler or Scheduler()
    take = _Taking(calls, samples, watcher, order, device)
    gc.collect()
    gc.disable()
    try:
        for cycle in range(plan.cycles):
            take.cycle(plan.turns(cycle))
        end = time.perf_counter() + min(budget_s, limit_s / 2)
        for cycle in range(plan.cycles):
            take.understand()
            short = [name for name in calls if not samples[name].enough()]
            if not short or time.perf_counter() >= end:
                break
            take.cycle(plan.further_turns(cycle, short))
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


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who has a turn in which cycle."""

    cycles: int
    # Turns of everybody who has one of their own, by name; and who share a turn, which every cycle has.
    rounds: dict[str, int]
    sharing: list[str]

    @classmethod
    def of(cls, turns_ns: Mapping[str, int], sharing: list[str], *, share_s: float, limit_s: float) -> "_Plan":
        """As many turns as a share of the budget allows; the fewest of all, if the limit allows those."""
        fewest = max(1, int(min(FEWEST, limit_s * 1e9 / max(sum(turns_ns.values()), 1))))
        rounds = {name: max(fewest, min(MOST, int(share_s * 1e9) // max(ns, 1))) for name, ns in turns_ns.items()}
        cycles = max(fewest * len(sharing), *(rounds[name] for name in sharing or rounds))
        return cls(cycles, {name: min(rounds[name], cycles) for name in rounds if name not in sharing}, sharing)

    def turns(self, cycle: int) -> list[str]:
        """Who has one in this cycle: turns are spread evenly over all of them."""
        own = [
            name
            for name, turns in self.rounds.items()
            if (cycle + 1) * turns // self.cycles > cycle * turns // self.cycles
        ]
        return own + self._sharer(self.sharing, cycle)

    def further_turns(self, cycle: int, short: Sequence[str]) -> list[str]:
        """Who has one in a cycle that is added: what is short is one side of a ratio, and the other side goes along."""
        wanting = [name for name in self.sharing if name in short] or self.sharing
        return [name for name in self.rounds if name in short] + self._sharer(wanting, cycle)

    def _sharer(self, names: Sequence[str], cycle: int) -> list[str]:
        """Whose turn the shared one is: in runs of equally many cycles, there and back again.

        There and back, so that what changes steadily meets all alike.
        """
        if not names:
            return []
        place = cycle // max(1, self.cycles // RUNS) % (2 * len(names))
        return [names[min(place, 2 * len(names) - 1 - place)]]


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


def _note_clock(samples: Samples, before: gpu_clocks.Reading, after: gpu_clocks.Reading) -> None:
    """Put two readings beside the turn that lay between them."""
    samples.clock_before_mhz.append(before.sm_mhz)
    samples.clock_after_mhz.append(after.sm_mhz)
    samples.throttle_reasons.append(before.reasons | after.reasons)
