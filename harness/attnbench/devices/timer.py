"""What times calls by the clock of a device, and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = ["ClockReader", "ClockReading", "DeviceSample", "Step", "Timer"]

Step = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One sample of a call on the device: times in nanoseconds, and whether the spin before the call was too short."""

    device_ns: int
    # Whether the device began the call before the whole call was enqueued; None if no spin preceded the call.
    late: bool | None
    # Time of the same call replayed as a graph; None if the call has no graph.
    graph_ns: int | None = None


class ClockReading(NamedTuple):
    """One reading: the clock rate of the multiprocessors, and a bit mask of the reasons that lower this rate."""

    # Clock rate in MHz; 0 if this reading failed.
    sm_mhz: int
    reasons: int


class ClockReader(Protocol):
    """Reads the clock rate of one device."""

    # Where readings come from, such as "NVML", or why there are none.
    source: str

    def read(self) -> ClockReading | None:
        """Read the clock rate and the throttling reasons; None if they cannot be read at all."""


class Timer(Protocol):
    """Times calls, which it knows by name, on one device."""

    clocks: ClockReader

    def __contains__(self, name: str) -> bool:
        """Whether the call of this name is timed on the device."""

    def calibrate(self, name: str) -> None:
        """Prepare the samples of a call that has been warmed up.

        Raises: the exception that the call raises.
        """

    def take_sample(self, name: str) -> DeviceSample:
        """Time one call, and one replay of its graph if there is one.

        Raises: the exception that the call raises.
        """

    def pause(self) -> None:
        """Let the device rest if a rest is due."""

    def describe_method(self, name: str) -> str:
        """Describe how the times of a call were measured, as a phrase that is followed by the word "time"."""

    def replay_matches(self, name: str) -> bool:
        """Whether a replay of the graph gives bitwise the same result as the call; True for a call without a graph."""
