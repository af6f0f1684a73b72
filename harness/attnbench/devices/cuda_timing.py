"""Times calls on a CUDA device between two CUDA events, with a cold L2 cache and without launch overhead.

CUDA events also count the time for which the device waits for a launch. To exclude that time, the device first runs a
short spin kernel, which keeps the device busy until the whole call is enqueued. The launch cannot be hidden if the call
synchronizes with the device, or launches more kernels than the device's queue holds. The stored
method of measurement then says "launch not hidden".
"""

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnbench.devices.gpu_clocks import Clocks
from attnbench.devices.timer import ClockReader, DeviceSample, Step

__all__ = ["CudaTimer", "Pauses", "flush_bytes", "spin_cycles", "spin_ns"]

# Smallest number of bytes to write before each call to flush the L2 cache, as in triton.testing.do_bench.
FLUSHED_AT_LEAST = 256_000_000
# Limits of the duration of the spin before a call, in nanoseconds. SHORTEST_NS is enough for a plain attention call,
# which makes about ten kernel launches of about 5 µs each. LONGEST_NS is enough to fill the device's queue with
# launches: the queue holds about a thousand launches (https://stackoverflow.com/q/53970187), and torch needs 5 to 10 ms
# to enqueue a thousand launches.
SHORTEST_NS, LONGEST_NS = 200_000, 20_000_000
# Duration of the spin as a multiple of the time that the host needs to enqueue the call. The multiple exceeds 1 because
# the host may be delayed. In addition, a spin has a fixed number of clock cycles, so it takes less time if the device's
# clock rate rises.
MARGIN = 3
# Number of calls whose launch is timed to choose the duration of the spin.
CALIBRATION_CALLS = 3
# Clock cycles of the spin that measures the device's clock rate: 1 ms at 2 GHz.
MEASURED_CYCLES = 2_000_000
# Number of warm-up calls before a graph capture, as in
# https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture.
BEFORE_CAPTURE = 3


def flush_bytes(cache_bytes: int) -> int:
    """Number of bytes to write so that an L2 cache of this size holds no earlier data."""
    return max(2 * cache_bytes, FLUSHED_AT_LEAST)


def spin_ns(launches_ns: Sequence[int]) -> int:
    """Nanoseconds to spin before a call; ``launches_ns`` are the measured times to enqueue the call."""
    return min(LONGEST_NS, max(SHORTEST_NS, MARGIN * max(launches_ns)))


def spin_cycles(duration_ns: int, clock_ghz: float) -> int:
    """Clock cycles of a spin of this duration, at the measured clock rate."""
    return round(duration_ns * clock_ghz)


@dataclass(slots=True)
class Pauses:
    """Computes how long a device should rest before its next call.

    A device that works at full power for more than about 5 ms lowers its clock: a B200 from 1965 to 1580 MHz
    (https://github.com/flashinfer-ai/flashinfer/pull/2899). After 5 ms of work the device rests for as long as it
    worked, which halves its mean power. The rest is at most 50 ms. Work of more than 50 ms without
    a rest is essentially one long call. Such a call lowers the clock while it runs, so a longer rest would not help.
    """

    now_ns: Callable[[], int] = time.perf_counter_ns
    work_ns: int = 5_000_000
    most_ns: int = 50_000_000
    _begin_ns: int | None = field(init=False, default=None)

    def due_ns(self) -> int:
        """Nanoseconds to rest now; 0 if the device has worked for less than ``work_ns``."""
        if self._begin_ns is None:
            self._begin_ns = self.now_ns()
        worked_ns = self.now_ns() - self._begin_ns
        return min(worked_ns, self.most_ns) if worked_ns >= self.work_ns else 0

    def restart(self) -> None:
        """Begin a new period of work, after the device has rested."""
        self._begin_ns = self.now_ns()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    """A call captured in a CUDA graph, and the tensors that each replay of the graph writes to."""

    replay: Callable[[], None]
    result: Any


class CudaTimer:
    """Times calls on the current CUDA device.

    ``steps`` maps names to calls. A call returns as soon as its work is enqueued. The calls named in
    ``capturable`` are also captured in a CUDA graph.
    """

    def __init__(self, steps: Mapping[str, Step], *, capturable: AbstractSet[str] = frozenset()) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._flushed = torch.empty(flush_bytes(properties.L2_cache_size), dtype=torch.uint8, device="cuda")
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._steps = steps
        self._capturable = capturable
        self.clocks: ClockReader = Clocks(str(properties.uuid))
        self._pauses = Pauses()
        self._clock_ghz: float | None = None
        # Nanoseconds to spin before each call, by the call's name; 0 if a spin cannot hide the launch.
        self._spins_ns: dict[str, int] = {}
        self._graphs: dict[str, _Graph] = {}
        self._uncaptured: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        """Whether the call of this name is timed on the device."""
        return name in self._steps

    def calibrate(self, name: str) -> None:
        """Choose how long to spin before a call, and capture the call in a graph if it is capturable.

        The call must have been warmed up.

        Raises: the exception that the call raises.
        """
        if self._clock_ghz is None:
            self._clock_ghz = self._measure_clock_ghz()
        launches_ns = []
        for _ in range(CALIBRATION_CALLS):
            sample, launch_ns = self._time_step(self._steps[name], LONGEST_NS)
            if sample.late:
                self._spins_ns[name] = 0
                break
            launches_ns.append(launch_ns)
        else:
            self._spins_ns[name] = spin_ns(launches_ns)
        if name in self._capturable:
            self._capture(name)

    def take_sample(self, name: str) -> DeviceSample:
        """Time one call, and one replay of its graph if there is one.

        Raises: the exception that the call raises.
        """
        sample, _ = self._time_step(self._steps[name], self._spins_ns[name])
        if name not in self._graphs:
            return sample
        replayed, _ = self._time_step(self._graphs[name].replay, SHORTEST_NS)
        late = None if sample.late is None else sample.late or replayed.late
        return DeviceSample(device_ns=sample.device_ns, late=late, graph_ns=replayed.device_ns)

    def pause(self) -> None:
        """Let the device rest if a rest is due."""
        due_ns = self._pauses.due_ns()
        if due_ns:
            time.sleep(due_ns / 1e9)
            self._pauses.restart()

    def describe_method(self, name: str) -> str:
        """Describe how the times of a call were measured, as a phrase that is followed by the word "time"."""
        launch = "launch hidden" if self._spins_ns.get(name) else "launch not hidden"
        method = f"device (CUDA events, cold L2 cache, {launch})"
        if name in self._uncaptured:
            method += f" and no graph ({self._uncaptured[name]})"
        return method + (", graph replay" if name in self._graphs else "") + " and end-to-end wall"

    def replay_matches(self, name: str) -> bool:
        """Whether a replay of the graph gives bitwise the same result as the call, on the present values of the inputs.

        If the results differ, the graph is discarded. For a call without a graph, the answer is True.
        """
        if name not in self._graphs:
            return True
        expected = _list_tensors(self._steps[name]())
        self._graphs[name].replay()
        torch.cuda.synchronize()
        replayed = _list_tensors(self._graphs[name].result)
        same = len(expected) == len(replayed) and all(map(torch.equal, expected, replayed))
        if not same:
            del self._graphs[name]
            self._uncaptured[name] = "the output of its replay differs in bits from the output of the call"
        return same

    def _time_step(self, step: Step, hidden_ns: int) -> tuple[DeviceSample, int]:
        """Time one call after a spin of ``hidden_ns`` nanoseconds (0: no spin).

        Also return the nanoseconds that it took to enqueue the call.
        """
        self._flushed.zero_()
        if hidden_ns:
            assert self._clock_ghz is not None
            torch.cuda._sleep(spin_cycles(hidden_ns, self._clock_ghz))  # type: ignore[no-untyped-call]  # noqa: SLF001  # torch's own tests use it
        else:
            # Wait until the cache is flushed. Otherwise the host would enqueue the call while the device still flushes
            # the cache, and a varying part of the launch time would be missing from the measured time.
            torch.cuda.synchronize()
        self._begin.record()
        began = time.perf_counter_ns()
        result = step()
        launch_ns = time.perf_counter_ns() - began
        self._end.record()
        # The begin event completes when the spin is over. If it has completed by now, the device began the call before
        # the whole call was enqueued.
        late = bool(self._begin.query()) if hidden_ns else None  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        del result
        return DeviceSample(device_ns=round(self._begin.elapsed_time(self._end) * 1e6), late=late), launch_ns

    def _measure_clock_ghz(self) -> float:
        """Measure the device's clock rate in cycles per nanosecond, from the second of two spins."""
        for _ in range(2):
            self._begin.record()
            torch.cuda._sleep(MEASURED_CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001  # as above
            self._end.record()
            torch.cuda.synchronize()
        return MEASURED_CYCLES / (float(self._begin.elapsed_time(self._end)) * 1e6)

    def _capture(self, name: str) -> None:
        """Capture a call in a CUDA graph; if the capture fails, store why, for ``describe_method`` to report."""
        step, graph, side_stream = self._steps[name], torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side_stream):
                for _ in range(BEFORE_CAPTURE):
                    step()
            torch.cuda.current_stream().wait_stream(side_stream)
            with torch.cuda.graph(graph):
                result = step()
            graph.replay()
            torch.cuda.synchronize()
        except RuntimeError as error:  # the call does something that a capture forbids
            self._uncaptured[name] = " ".join(str(error).split())[:200] or type(error).__name__
        else:
            self._graphs[name] = _Graph(replay=graph.replay, result=result)


def _list_tensors(result: object) -> list[Tensor]:
    """Return the tensors of a call's result, which is a single value or a tuple."""
    parts = result if isinstance(result, tuple) else (result,)
    return [part for part in parts if isinstance(part, Tensor)]
