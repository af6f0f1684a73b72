"""Takes interleaved samples of calls, so that other load on the machine affects every implementation alike."""

import gc
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnbench.analysis.stats import CLEAN_CALLS, select_clean_calls
from attnbench.measurement import gpu_clocks
from attnbench.measurement.cuda_timing import DeviceTime
from attnbench.measurement.scheduler import Reading, Scheduler
from attnbench.records.types import SAMPLE_FIELDS, Timing

__all__ = ["CallFailed", "Samples", "sample_interleaved", "take_sample"]

Calls = Mapping[str, Callable[[], object]]
# Calls of each implementation before the first sample. The first call takes 7 to 13 % longer than later ones; times are
# stable by the third call.
WARM_UP_CALLS = 3
# Smallest and largest number of samples of each implementation in one process. With fewer samples than the smallest
# number, the process would not count for a speed verdict.
FEWEST, MOST = CLEAN_CALLS, 200
# Number of blocks of consecutive cycles; a block calls either the baseline or its copy. If the two alternated every
# cycle or two, each would find its data evicted from the caches, which lengthens calls of 0.15 to 0.9 ms by 0.4 to
# 1.7 %. With blocks of 25 cycles, that effect is at most 0.5 %.
BLOCKS = 8
# Number of cycles between two searches for new threads of this process; most threads start with the first call.
WATCHED_EVERY = 8


class CallFailed(Exception):
    """A call raised; ``__cause__`` is the exception that it raised."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the call of {name} raised")
        self.name = name


@dataclass(slots=True, kw_only=True)
class Samples:
    """Lists with one number per sampled call, in the order of the calls; and the time of the first call.

    ``times_ns`` are wall times. ``waited_ns`` are the times for which the process's threads waited for a core during
    the call. ``switches`` are numbers of involuntary context switches. ``cycles`` are the numbers of the cycles that
    made the calls; in one cycle, each implementation is sampled at most once. A list is empty if the system does not
    count its quantity, or if no device timed the calls. The fields are those of a ``Timing``.
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
    # Method by which the times were measured, and source of the readings of the device's clock.
    method: str = "wall"
    clock: str = ""

    def has_enough_clean_calls(self) -> bool:
        """Whether there are enough clean calls for this process to count for a speed verdict."""
        counted: dict[str, Any] = {name: (tuple(getattr(self, name)),) for name in SAMPLE_FIELDS}
        return any(select_clean_calls(Timing(samples_ns=(tuple(self.times_ns),), threads=0, **counted)))


def sample_interleaved(
    calls: Calls,
    *,
    budget_s: float,
    seed: int,
    limit_s: float = math.inf,
    baseline: Sequence[str] = (),
    scheduler: Scheduler | None = None,
    device: DeviceTime | None = None,
) -> dict[str, Samples]:
    """Take interleaved samples of all calls: a cycle takes at most one sample of each call, in random order.

    A sample is one call timed from end to end and, with a ``device``, one more call that the device times. These two
    calls are made in random order. Nothing but the call is timed: garbage collection is off, and the scheduler's
    counters are read before and after the timed interval.

    The budget is divided evenly among the calls. A slow call takes part in fewer cycles than a fast call, spread evenly
    over all cycles. If other work disturbed too many calls, cycles are added for at most another ``budget_s``. No more
    samples are planned than ``limit_s`` allows, even if so few samples give no verdict.

    ``baseline`` names the baseline and its copy for the A/A control. A cycle calls only one of the two. Together they
    get the same part of the budget as one other call, and this part determines the number of cycles. If a cycle called
    both, the same code would run twice as often as that of other calls. It would find its code and data in the caches,
    which saved 3 to 4 % of a call of 0.4 ms.

    Raises: CallFailed if a call raises.
    """
    samples = {name: Samples() for name in calls}
    order = random.Random(seed)  # noqa: S311  # the order of calls, no secret
    names = list(calls)
    order.shuffle(names)
    # One process calls the baseline first, the next process its copy.
    sharing = [name for name in (*baseline[seed % 2 :], *baseline[: seed % 2]) if name in calls]
    share_s = budget_s / (len(calls) - max(0, len(sharing) - 1))
    sample_ns = {name: _warm_up(name, calls[name], samples[name], share_s) for name in names}
    if device is not None:
        sample_ns = {name: _calibrate(name, calls[name], samples[name], device, sample_ns[name]) for name in names}
    plan = _Plan.from_budget({name: sample_ns[name] for name in calls}, sharing, share_s=share_s, limit_s=limit_s)
    watcher = scheduler or Scheduler()
    sampler = _Sampler(calls, samples, watcher, order, device)
    gc.collect()
    gc.disable()
    try:
        for cycle in range(plan.cycles):
            sampler.run_cycle(plan.choose_calls(cycle))
        end = time.perf_counter() + min(budget_s, limit_s / 2)
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
    return samples


def take_sample(name: str, call: Callable[[], object], samples: Samples) -> None:
    """Add one sample of a single call to ``samples``.

    Raises: CallFailed if the call raises.
    """
    scheduler = Scheduler()
    sampler = _Sampler({name: call}, {name: samples}, scheduler, random.Random(0))  # noqa: S311  # one call has no order
    sampler.run_cycle([name])
    sampler.process_readings()
    scheduler.close()


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which calls are made in which cycle."""

    cycles: int
    # Number of samples of each call, by name, without the baseline and its copy.
    counts: dict[str, int]
    # Names of the baseline and its copy; every cycle calls one of them.
    sharing: list[str]

    @classmethod
    def from_budget(
        cls, sample_ns: Mapping[str, int], sharing: list[str], *, share_s: float, limit_s: float
    ) -> "_Plan":
        """Plan as many samples of each call as fit into ``share_s``, but at least ``FEWEST`` if ``limit_s`` allows."""
        fewest = max(1, int(min(FEWEST, limit_s * 1e9 / max(sum(sample_ns.values()), 1))))
        counts = {name: max(fewest, min(MOST, int(share_s * 1e9) // max(ns, 1))) for name, ns in sample_ns.items()}
        cycles = max(fewest * len(sharing), *(counts[name] for name in sharing or counts))
        return cls(cycles, {name: min(counts[name], cycles) for name in counts if name not in sharing}, sharing)

    def choose_calls(self, cycle: int) -> list[str]:
        """Names of the calls to make in a cycle: the samples of each call are spread evenly over all cycles."""
        own = [
            name
            for name, count in self.counts.items()
            if (cycle + 1) * count // self.cycles > cycle * count // self.cycles
        ]
        return own + self._choose_baseline_copy(self.sharing, cycle)

    def choose_added_calls(self, cycle: int, short: Sequence[str]) -> list[str]:
        """Names of the calls to make in an added cycle: those with too few clean calls, and baseline or copy."""
        wanting = [name for name in self.sharing if name in short] or self.sharing
        return [name for name in self.counts if name in short] + self._choose_baseline_copy(wanting, cycle)

    def _choose_baseline_copy(self, names: Sequence[str], cycle: int) -> list[str]:
        """Choose the baseline or its copy for a cycle: the two alternate in blocks of cycles, as in a, b, b, a.

        The blocks have the same length. In this order, a steady drift of the machine affects both alike.
        """
        if not names:
            return []
        place = cycle // max(1, self.cycles // BLOCKS) % (2 * len(names))
        return [names[min(place, 2 * len(names) - 1 - place)]]


def _warm_up(name: str, call: Callable[[], object], samples: Samples, budget_s: float) -> int:
    """Make a few calls and return the time of the fastest, in nanoseconds.

    Only two calls are made if both take longer than the budget. One call would not be enough: the first may compile
    something, and then takes longer than later calls.
    """
    took_ns: list[int] = []
    while len(took_ns) < 2 or (len(took_ns) < WARM_UP_CALLS and min(took_ns) <= budget_s * 1e9):
        begin = time.perf_counter_ns()
        try:
            call()
        except BaseException as error:
            raise CallFailed(name) from error
        took_ns.append(time.perf_counter_ns() - begin)
    samples.first_call_ns = took_ns[0]
    return min(took_ns)


def _calibrate(name: str, call: Callable[[], object], samples: Samples, device: DeviceTime, call_ns: int) -> int:
    """Calibrate the timing of a call on a device, and return the nanoseconds of one whole sample.

    For a call that the device does not time, return ``call_ns``.
    """
    samples.clock = device.clocks.source
    if name not in device:
        samples.method = "end-to-end wall"
        return call_ns
    try:
        device.calibrate(name)
        begin = time.perf_counter_ns()
        call()
        device.take_sample(name)
    except BaseException as error:
        raise CallFailed(name) from error
    samples.method = device.describe_method(name)
    return time.perf_counter_ns() - begin


@dataclass(slots=True)
class _Sampler:
    """Takes samples, cycle by cycle."""

    calls: Calls
    samples: dict[str, Samples]
    scheduler: Scheduler
    order: random.Random
    device: DeviceTime | None = None
    # Scheduler counters before and after each call, not parsed yet, each pair with the ``Samples`` that it belongs to.
    readings: list[tuple[Samples, Reading, Reading]] = field(default_factory=list)
    cycles: int = 0

    def run_cycle(self, names: list[str]) -> None:
        """Take one sample of each of these calls."""
        if not self.cycles % WATCHED_EVERY:
            self.scheduler.watch()
        self.cycles += 1
        self.order.shuffle(names)
        if self.device is None:
            for name in names:
                self._take_wall_sample(name)
        else:
            self._run_cycle_on(self.device, names)

    def _run_cycle_on(self, device: DeviceTime, names: list[str]) -> None:
        """Take one sample of each of these calls on a device, and read the device's clock before and after them."""
        before = device.clocks.read()
        for name in names:
            device.pause()
            take_each: list[Callable[[str], None]] = [self._take_wall_sample]
            if name in device:
                take_each.append(self._take_device_sample)
            self.order.shuffle(take_each)
            for take in take_each:
                take(name)
        after = device.clocks.read()
        if before is not None and after is not None:
            for name in names:
                _note_clock(self.samples[name], before, after)

    def process_readings(self) -> None:
        """Parse the scheduler counters into the samples; between two calls, parsing would disturb the second call."""
        for samples, before, after in self.readings:
            waited, switches = after.waited_ns_since(before), after.switches_since(before)
            if waited is not None:
                samples.waited_ns.append(waited)
            if switches is not None:
                samples.switches.append(switches)
        self.readings.clear()

    def _take_wall_sample(self, name: str) -> None:
        call, samples, clock = self.calls[name], self.samples[name], time.perf_counter_ns
        before = self.scheduler.read()
        begin = clock()
        try:
            result = call()
        except BaseException as error:
            raise CallFailed(name) from error
        end = clock()
        self.readings.append((samples, before, self.scheduler.read()))
        samples.times_ns.append(end - begin)
        samples.cycles.append(self.cycles)
        del result  # freed outside the timed interval

    def _take_device_sample(self, name: str) -> None:
        assert self.device is not None
        try:
            sample = self.device.take_sample(name)
        except BaseException as error:
            raise CallFailed(name) from error
        samples = self.samples[name]
        samples.device_ns.append(sample.device_ns)
        if sample.late is not None:
            samples.late.append(sample.late)
        if sample.graph_ns is not None:
            samples.graph_ns.append(sample.graph_ns)


def _note_clock(samples: Samples, before: gpu_clocks.Reading, after: gpu_clocks.Reading) -> None:
    """Add the clock readings before and after a cycle to the samples of a call that the cycle made."""
    samples.clock_before_mhz.append(before.sm_mhz)
    samples.clock_after_mhz.append(after.sm_mhz)
    samples.throttle_reasons.append(before.reasons | after.reasons)
