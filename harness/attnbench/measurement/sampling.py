"""Takes interleaved samples of calls, so that other load on the machine affects every implementation alike."""

import gc
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import process_time_ns, thread_time_ns
from typing import Any

import torch

from attnbench.analysis.stats import CLEAN_CALLS, select_clean_calls
from attnbench.devices.timer import ClockReading, Timer
from attnbench.measurement.account import Account
from attnbench.measurement.scheduler import Reading, Scheduler
from attnbench.measurement.surroundings import Ended, Surroundings, Unwatched
from attnbench.records.types import SAMPLE_FIELDS, Timing

__all__ = ["CallFailed", "sample_interleaved"]

Calls = Mapping[str, Callable[[], object]]
# Number of calls of each implementation before its first sample. The first call takes 7 to 13 % longer than later
# calls. Times are stable by the third call.
WARM_UP_CALLS = 3
# Limits of the number of samples of each implementation in one process. With fewer than ``FEWEST`` samples, the process
# would not count for a speed verdict.
FEWEST, MOST = CLEAN_CALLS, 200
# Number of blocks of consecutive cycles. All cycles of a block call the baseline, or all call its copy. If the baseline
# and its copy alternated after every one or two cycles, each would find its data evicted from the caches. Such
# evictions lengthen calls of 0.15 to 0.9 ms by 0.4 to 1.7 %. With blocks of 25 cycles, evictions lengthen calls by at
# most 0.5 %.
BLOCKS = 8
# Number of cycles between two searches for new threads of this process. Most threads start during the first call.
WATCHED_EVERY = 8


class CallFailed(Exception):
    """Raised if a timed call raises an exception; ``__cause__`` is the exception of the call."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the call of {name} raised an exception")
        self.name = name


@dataclass(slots=True, kw_only=True)
class _Taken:
    """Samples of one call while they are taken: each list has one number per sampled call, in the order of the calls.

    The fields are those of ``Timing``, which describes them. A list is empty if its quantity was not measured.
    """

    samples_ns: list[int] = field(default_factory=list)
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
    method: str = "wall"
    clock: str = ""

    def make_timing(self) -> Timing:
        """Return the samples as the timing by this process."""
        columns: dict[str, Any] = {name: (tuple(own),) for name in SAMPLE_FIELDS if (own := getattr(self, name))}
        return Timing(
            samples_ns=(tuple(self.samples_ns),),
            **columns,
            threads=torch.get_num_threads(),
            method=self.method,
            clock=self.clock,
            trainable=True,
            first_call_ns=(self.first_call_ns,),
        )

    def has_enough_clean_calls(self) -> bool:
        """Whether there are enough clean calls for this process to count for a speed verdict."""
        return any(select_clean_calls(self.make_timing()))


def sample_interleaved(
    calls: Calls,
    *,
    budget_s: float,
    seed: int,
    limit_s: float = math.inf,
    until_s: float = math.inf,
    baseline: Sequence[str] = (),
    scheduler: Scheduler | None = None,
    timer: Timer | None = None,
    surroundings: Surroundings | None = None,
    account: Account | None = None,
) -> dict[str, Timing]:
    """Take interleaved samples of all calls: a cycle takes at most one sample of each call, in random order.

    A sample is one call timed from end to end and, with a ``timer``, one more call that the device times. These two
    calls are made in random order. Nothing but the call is timed: garbage collection is off, and the scheduler's
    counters are read before and after the timed interval.

    The budget of ``budget_s`` seconds is divided evenly among the calls. A slow call takes part in fewer cycles than a
    fast call; these cycles are spread evenly over all cycles. If other work disturbed too many calls, cycles are added:
    at most as many as were planned, for at most another ``budget_s`` seconds or, within ``limit_s`` and ``until_s``
    seconds in all, as long as the planned cycles took. If ``FEWEST`` samples of each call would take more than
    ``limit_s`` seconds, fewer samples are planned, even if they are too few for a speed verdict.

    ``baseline`` names the baseline and its copy for the A/A control. A cycle calls either the baseline or its copy. The
    baseline and its copy together get the same part of the budget as any other call. This part determines the number of
    cycles. If each cycle called both the baseline and its copy, the code of the baseline would run twice as often as
    the code of other implementations. The baseline would then more often find its code and data in the caches. This
    effect shortened a call of 0.4 ms by 3 to 4 %.

    ``surroundings`` does what belongs around each call, such as writing its input values. ``account`` gets the time
    between the samples.

    Raises: CallFailed if a call raises; what ``surroundings`` raises.
    """
    samples = {name: _Taken() for name in calls}
    order = random.Random(seed)  # noqa: S311  # the order of calls, no secret
    names = list(calls)
    order.shuffle(names)
    # A process with an even seed begins with the baseline; a process with an odd seed begins with the baseline's copy.
    sharing = [name for name in (*baseline[seed % 2 :], *baseline[: seed % 2]) if name in calls]
    share_s = budget_s / (len(calls) - max(0, len(sharing) - 1))
    around = surroundings or Unwatched()
    sample_ns = {name: _warm_up(name, calls[name], samples[name], share_s, around) for name in names}
    if timer is not None:
        sample_ns = {name: _calibrate(name, calls[name], samples[name], timer, sample_ns[name]) for name in names}
    plan = _Plan.from_budget({name: sample_ns[name] for name in calls}, sharing, share_s=share_s, limit_s=limit_s)
    around.expect(plan.count_samples())
    watcher = scheduler or Scheduler()
    sampler = _Sampler(calls, samples, watcher, order, around, account or Account(), timer)
    gc.collect()
    gc.disable()
    try:
        begin = time.perf_counter()
        for cycle in range(plan.cycles):
            sampler.run_cycle(plan.choose_calls(cycle))
        took_s = time.perf_counter() - begin
        # The planned cycles of slow calls take longer than ``budget_s``.
        end = begin + took_s + max(min(budget_s, limit_s / 2), min(took_s, limit_s - took_s, until_s - took_s))
        for cycle in range(plan.cycles):
            sampler.process_readings()
            short = [name for name in calls if not samples[name].has_enough_clean_calls()]
            if not short or time.perf_counter() >= end:
                break
            sampler.run_cycle(plan.choose_added_calls(cycle, short))
        sampler.process_readings()
    finally:
        gc.enable()
        watcher.close()
    return {name: own.make_timing() for name, own in samples.items()}


@dataclass(frozen=True, slots=True)
class _Plan:
    """Plan of the calls that each cycle makes."""

    cycles: int
    # Number of samples of each call, by the call's name. The baseline and its copy are not included.
    counts: dict[str, int]
    # Names of the baseline and its copy; every cycle calls one of them.
    sharing: list[str]

    @classmethod
    def from_budget(
        cls, sample_ns: Mapping[str, int], sharing: list[str], *, share_s: float, limit_s: float
    ) -> "_Plan":
        """Plan the number of samples of each call: from ``FEWEST`` to ``MOST``.

        Between these limits, all samples of one call together take ``share_s`` seconds. ``sample_ns`` maps the name of
        a call to the time of one sample. ``sharing`` names the baseline and its copy.

        Fewer samples are planned if ``FEWEST`` samples of all calls would take more than ``limit_s`` seconds.
        """
        fewest = max(1, int(min(FEWEST, limit_s * 1e9 / max(sum(sample_ns.values()), 1))))
        counts = {name: max(fewest, min(MOST, int(share_s * 1e9) // max(ns, 1))) for name, ns in sample_ns.items()}
        cycles = max(fewest * len(sharing), *(counts[name] for name in sharing or counts))
        return cls(cycles, {name: min(counts[name], cycles) for name in counts if name not in sharing}, sharing)

    def count_samples(self) -> dict[str, int]:
        """Return the number of samples of each call, by the call's name."""
        baseline = (name for cycle in range(self.cycles) for name in self._choose_baseline_copy(self.sharing, cycle))
        return self.counts | Counter(baseline)

    def choose_calls(self, cycle: int) -> list[str]:
        """Names of the calls to make in a cycle. The samples of each call are spread evenly over all cycles."""
        own = [
            name
            for name, count in self.counts.items()
            if (cycle + 1) * count // self.cycles > cycle * count // self.cycles
        ]
        return own + self._choose_baseline_copy(self.sharing, cycle)

    def choose_added_calls(self, cycle: int, short: Sequence[str]) -> list[str]:
        """Names of the calls to make in an added cycle: the calls in ``short``, and either the baseline or its copy.

        ``short`` names the calls that have too few clean samples so far.
        """
        wanting = [name for name in self.sharing if name in short] or self.sharing
        return [name for name in self.counts if name in short] + self._choose_baseline_copy(wanting, cycle)

    def _choose_baseline_copy(self, names: Sequence[str], cycle: int) -> list[str]:
        """Choose the baseline (a) or its copy (b) for a cycle: blocks of cycles have the order a, b, b, a.

        All blocks have the same length. In this order, a steady drift of the machine's speed affects the baseline and
        its copy alike.
        """
        if not names:
            return []
        place = cycle // max(1, self.cycles // BLOCKS) % (2 * len(names))
        return [names[min(place, 2 * len(names) - 1 - place)]]


def _warm_up(
    name: str, call: Callable[[], object], samples: _Taken, budget_s: float, surroundings: Surroundings
) -> int:
    """Make a few calls and return the time of the fastest call, in nanoseconds.

    Only two calls are made if each takes longer than ``budget_s`` seconds. A single call would not be enough: the first
    call may compile code, and then takes longer than later calls.
    """
    took_ns: list[int] = []
    while len(took_ns) < 2 or (len(took_ns) < WARM_UP_CALLS and min(took_ns) <= budget_s * 1e9):
        surroundings.prepare(name, 0)
        begin = time.perf_counter_ns()
        try:
            call()
        except BaseException as error:
            raise CallFailed(name) from error
        took_ns.append(time.perf_counter_ns() - begin)
    samples.first_call_ns = took_ns[0]
    return min(took_ns)


def _calibrate(name: str, call: Callable[[], object], samples: _Taken, timer: Timer, call_ns: int) -> int:
    """Calibrate the timing of a call on a device, and return the nanoseconds that one sample takes.

    For a call that the device does not time, return ``call_ns``.
    """
    samples.clock = timer.clocks.source
    if name not in timer:
        samples.method = "end-to-end wall"
        return call_ns
    try:
        timer.calibrate(name)
        begin = time.perf_counter_ns()
        call()
        timer.take_sample(name)
    except BaseException as error:
        raise CallFailed(name) from error
    samples.method = timer.describe_method(name)
    return time.perf_counter_ns() - begin


@dataclass(slots=True)
class _Sampler:
    """Takes samples of calls, cycle by cycle, and adds them to ``samples``."""

    calls: Calls
    samples: dict[str, _Taken]
    scheduler: Scheduler
    order: random.Random
    surroundings: Surroundings
    account: Account
    timer: Timer | None = None
    # For each call: the ``_Taken`` to which the call belongs, and the scheduler's unparsed counters before and after.
    readings: list[tuple[_Taken, Reading, Reading]] = field(default_factory=list)
    cycles: int = 0

    def run_cycle(self, names: list[str]) -> None:
        """Take one sample of each call in ``names``, in random order."""
        if not self.cycles % WATCHED_EVERY:
            self.scheduler.watch()
        self.cycles += 1
        self.order.shuffle(names)
        if self.timer is None:
            for name in names:
                self._take_wall_sample(name)
        else:
            self._run_cycle_on(self.timer, names)

    def _run_cycle_on(self, timer: Timer, names: list[str]) -> None:
        """Take one sample of each call in ``names``, and read the device's clock before and after all these samples."""
        before = timer.clocks.read()
        for name in names:
            timer.pause()
            take_each: list[Callable[[str], None]] = [self._take_wall_sample]
            if name in timer:
                take_each.append(self._take_device_sample)
            self.order.shuffle(take_each)
            for take in take_each:
                take(name)
        after = timer.clocks.read()
        if before is not None and after is not None:
            for name in names:
                _note_clock(self.samples[name], before, after)

    def process_readings(self) -> None:
        """Parse the stored scheduler counters, and add the numbers to the samples.

        The counters are not parsed between two calls, because parsing would disturb the second call.
        """
        for samples, before, after in self.readings:
            waited, switches = after.waited_ns_since(before), after.switches_since(before)
            if waited is not None:
                samples.waited_ns.append(waited)
            if switches is not None:
                samples.switches.append(switches)
        self.readings.clear()

    def _take_wall_sample(self, name: str) -> None:
        call, samples = self.calls[name], self.samples[name]
        clock, is_collecting = time.perf_counter_ns, gc.isenabled
        self.surroundings.prepare(name, self.cycles)
        before = self.scheduler.read()
        begin = clock()
        try:
            result = call()
        except BaseException as error:
            raise CallFailed(name) from error
        end = clock()
        # Read before anything is allocated, because an allocation may start a collection, which may run code.
        collects = is_collecting()
        # The first system call after the call: on a busy machine, Linux gives the core to another process there. That
        # wait is then after the reading, and not in the sample.
        reading = self.scheduler.read()
        used_ns = thread_time_ns(), process_time_ns()
        self.readings.append((samples, before, reading))
        ended = Ended(begin, end, *used_ns, collects, before, reading)
        self.surroundings.inspect(name, result, ended)
        samples.samples_ns.append(end - begin)
        samples.cycles.append(self.cycles)
        self.account.add_sample(begin, end)
        freeing_ns = thread_time_ns()
        del result  # outside the timed interval
        self.surroundings.note_freed(name, thread_time_ns() - freeing_ns)

    def _take_device_sample(self, name: str) -> None:
        assert self.timer is not None
        self.surroundings.prepare(name, 0)
        try:
            sample = self.timer.take_sample(name)
        except BaseException as error:
            raise CallFailed(name) from error
        samples = self.samples[name]
        samples.device_ns.append(sample.device_ns)
        if sample.late is not None:
            samples.late.append(sample.late)
        if sample.graph_ns is not None:
            samples.graph_ns.append(sample.graph_ns)


def _note_clock(samples: _Taken, before: ClockReading, after: ClockReading) -> None:
    """Add the clock readings before and after a cycle to the samples of a call that the cycle made."""
    samples.clock_before_mhz.append(before.sm_mhz)
    samples.clock_after_mhz.append(after.sm_mhz)
    samples.throttle_reasons.append(before.reasons | after.reasons)
