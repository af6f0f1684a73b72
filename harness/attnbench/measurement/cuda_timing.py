"""Time of a call on a CUDA device, by the device's own clock: its second-level cache cold, the launch hidden.

Events around a call tell what lies between them on the device, launches that the device had to wait for included. So
that there are none, the call is put behind a short spin, which the device is busy with until all of it is enqueued.
A call that waits for the device itself, or launches more than the device's queue holds, cannot be hidden; the record
says so.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnbench.measurement.gpu_clocks import Clocks

__all__ = ["DeviceTime", "OnDevice", "Pauses", "flush_bytes", "spin_cycles", "spin_ns"]

Step = Callable[[], object]
# What is written before each call, in bytes: 256 MB where twice the cache is less, as triton.testing.do_bench has it.
FLUSHED_AT_LEAST = 256_000_000
# Nanoseconds of spinning: a launch takes about 5 µs, a plain call of attention makes some ten; and the device's queue
# takes about a thousand (https://stackoverflow.com/q/53970187), which torch needs 5 to 10 ms to fill.
SHORTEST_NS, LONGEST_NS = 200_000, 20_000_000
# How many times as long as the launch the spin is: the host may be held up, and the device's clock may rise.
MARGIN = 3
# Calls whose launch is timed before it is settled how long to spin.
SETTLING = 3
# Cycles of the spin by which the device's clock is measured: 1 ms at 2 GHz.
MEASURED_CYCLES = 2_000_000
# Calls before a capture: https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture has three.
BEFORE_CAPTURE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDevice:
    """What one turn of a call took on the device, in nanoseconds."""

    device_ns: int
    # Whether the device came to the call before all of it was enqueued; None where there was no spin to hide that.
    late: bool | None
    # The same call as a replayed graph; None where there is none.
    graph_ns: int | None = None


def flush_bytes(cache_bytes: int) -> int:
    """Bytes to write so that nothing else is left in a second-level cache of this size."""
    return max(2 * cache_bytes, FLUSHED_AT_LEAST)


def spin_ns(launches_ns: Sequence[int]) -> int:
    """How long to spin before a call whose launches took so long."""
    return min(LONGEST_NS, max(SHORTEST_NS, MARGIN * max(launches_ns)))


def spin_cycles(duration_ns: int, clock_ghz: float) -> int:
    """Cycles of a spin at the clock that was measured."""
    return round(duration_ns * clock_ghz)


@dataclass(slots=True)
class Pauses:
    """Says how long a device should rest before its next call.

    A device that works for long at full power lowers its clock: a B200 from 1965 to 1580 MHz, from about 5 ms on
    (https://github.com/flashinfer-ai/flashinfer/pull/2899). After as long as that it rests for the same time, which
    halves its mean power, and for no more than 50 ms: a call that alone takes longer is held down in itself.
    """

    now_ns: Callable[[], int] = time.perf_counter_ns
    work_ns: int = 5_000_000
    most_ns: int = 50_000_000
    _begin_ns: int | None = field(init=False, default=None)

    def due_ns(self) -> int:
        """Nanoseconds to rest for now; 0 where the device has not worked long enough."""
        if self._begin_ns is None:
            self._begin_ns = self.now_ns()
        worked_ns = self.now_ns() - self._begin_ns
        return min(worked_ns, self.most_ns) if worked_ns >= self.work_ns else 0

    def rested(self) -> None:
        """The device begins to work again."""
        self._begin_ns = self.now_ns()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    """A captured call, and the tensors that each replay writes to."""

    replay: Callable[[], None]
    result: Any


class DeviceTime:
    """Times calls on the current CUDA device; ``steps`` return as soon as their work is enqueued.

    Those named by ``capturable`` are captured in a graph as well.
    """

    def __init__(self, steps: Mapping[str, Step], *, capturable: AbstractSet[str] = frozenset()) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._flushed = torch.empty(flush_bytes(properties.L2_cache_size), dtype=torch.uint8, device="cuda")
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._steps = steps
        self._capturable = capturable
        self.clocks = Clocks(str(properties.uuid))
        self._pauses = Pauses()
        self._clock_ghz: float | None = None
        # Of each call how long to spin before it, 0 where that hides nothing.
        self._spins_ns: dict[str, int] = {}
        self._graphs: dict[str, _Graph] = {}
        self._uncaptured: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a call is timed here."""
        return name in self._steps

    def settle(self, name: str) -> None:
        """Find out how long to spin before a call that was warmed up, and capture it where it may be.

        Raises: whatever the call raises.
        """
        if self._clock_ghz is None:
            self._clock_ghz = self._measured_ghz()
        launches_ns = []
        for _ in range(SETTLING):
            taken, launch_ns = self._taken(self._steps[name], LONGEST_NS)
            if taken.late:
                self._spins_ns[name] = 0
                break
            launches_ns.append(launch_ns)
        else:
            self._spins_ns[name] = spin_ns(launches_ns)
        if name in self._capturable:
            self._capture(name)

    def take(self, name: str) -> OnDevice:
        """One call, and one replay of its graph where there is one.

        Raises: whatever the call raises.
        """
        taken, _ = self._taken(self._steps[name], self._spins_ns[name])
        if name not in self._graphs:
            return taken
        replayed, _ = self._taken(self._graphs[name].replay, SHORTEST_NS)
        late = None if taken.late is None else taken.late or replayed.late
        return OnDevice(device_ns=taken.device_ns, late=late, graph_ns=replayed.device_ns)

    def pause(self) -> None:
        """Let the device rest where it is due."""
        due_ns = self._pauses.due_ns()
        if due_ns:
            time.sleep(due_ns / 1e9)
            self._pauses.rested()

    def method(self, name: str) -> str:
        """How the times of a call were taken, in words that go before "time"."""
        launch = "launch hidden" if self._spins_ns.get(name) else "launch not hidden"
        told = f"device (CUDA events, cold L2 cache, {launch})"
        if name in self._uncaptured:
            told += f" and no graph ({self._uncaptured[name]})"
        return told + (", graph replay" if name in self._graphs else "") + " and end-to-end wall"

    def repeats(self, name: str) -> bool:
        """Whether a replay gives what the call gives, bit by bit, on the values that the inputs have now.

        Where it does not, its graph is left out from now on. True where there is no graph.
        """
        if name not in self._graphs:
            return True
        expected = _tensors(self._steps[name]())
        self._graphs[name].replay()
        torch.cuda.synchronize()
        replayed = _tensors(self._graphs[name].result)
        same = len(expected) == len(replayed) and all(map(torch.equal, expected, replayed))
        if not same:
            del self._graphs[name]
            self._uncaptured[name] = "its replay gives other bits than the call"
        return same

    def _taken(self, step: Step, hidden_ns: int) -> tuple[OnDevice, int]:
        """One call behind a spin of so many nanoseconds, and how long it took to enqueue."""
        self._flushed.zero_()
        if hidden_ns:
            assert self._clock_ghz is not None
            torch.cuda._sleep(spin_cycles(hidden_ns, self._clock_ghz))  # type: ignore[no-untyped-call]  # noqa: SLF001  # torch's own tests spin by it
        else:
            # Otherwise the flush would hide a part of the launch, more or less.
            torch.cuda.synchronize()
        self._begin.record()
        began = time.perf_counter_ns()
        result = step()
        launch_ns = time.perf_counter_ns() - began
        self._end.record()
        # The spin is over if the event behind it has come to pass.
        late = bool(self._begin.query()) if hidden_ns else None  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        del result
        return OnDevice(device_ns=round(self._begin.elapsed_time(self._end) * 1e6), late=late), launch_ns

    def _measured_ghz(self) -> float:
        """Clock of the device, in cycles per nanosecond, by a second spin of known length."""
        for _ in range(2):
            self._begin.record()
            torch.cuda._sleep(MEASURED_CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001  # as above
            self._end.record()
            torch.cuda.synchronize()
        return MEASURED_CYCLES / (float(self._begin.elapsed_time(self._end)) * 1e6)

    def _capture(self, name: str) -> None:
        """Capture a call in a graph; where that fails, keep why."""
        step, graph, aside = self._steps[name], torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(BEFORE_CAPTURE):
                    step()
            torch.cuda.current_stream().wait_stream(aside)
            with torch.cuda.graph(graph):
                result = step()
            graph.replay()
            torch.cuda.synchronize()
        except RuntimeError as error:  # what a call does that a capture forbids
            self._uncaptured[name] = " ".join(str(error).split())[:200] or type(error).__name__
        else:
            self._graphs[name] = _Graph(replay=graph.replay, result=result)


def _tensors(result: object) -> list[Tensor]:
    """Tensors of what a call returned, in order."""
    parts = result if isinstance(result, tuple) else (result,)
    return [part for part in parts if isinstance(part, Tensor)]
