"""The clocks that are read around each timed call."""

import time
from dataclasses import dataclass, field

from attnbench.measurement.processor_time import ProcessorTime, read_family_ns
from attnbench.measurement.scheduler import OwnWait, Reading

__all__ = ["Clocks"]


@dataclass(slots=True)
class Clocks:
    """The system's clocks, in nanoseconds: wall time, processor times, and the time for which this thread waits.

    Differences of two readings are meaningful. Each method calls a function of the module ``time`` by its present name:
    if an implementation replaces the function, the ``Instrument`` finds it.
    """

    _processor: ProcessorTime = field(init=False, default_factory=ProcessorTime)
    _waits: OwnWait = field(init=False, default_factory=OwnWait)

    def read_wall_ns(self) -> int:
        """Return the wall time."""
        return time.perf_counter_ns()

    def read_thread_ns(self) -> int:
        """Return the processor time of this thread."""
        return time.thread_time_ns()

    def read_process_ns(self) -> int:
        """Return the processor time of this process, without its descendants."""
        return time.process_time_ns()

    def read_processor_ns(self) -> int:
        """Return the processor time of this process and of the descendants that were found, as ``ProcessorTime``."""
        return self._processor.read_ns()

    def read_family_ns(self) -> int:
        """Return the processor time of this process and of all that it started."""
        return read_family_ns()

    @property
    def rounding_ns(self) -> int:
        """Nanoseconds by which a sum of differences of ``read_processor_ns`` can be too large."""
        return self._processor.rounding_ns

    def find_descendants(self) -> None:
        """Find all descendants of this process."""
        self._processor.watch()

    def find_new_descendants(self) -> None:
        """Find the descendants that have started since the last search."""
        self._processor.watch_new()

    def read_waited_ns(self, before: Reading) -> int:
        """Return the time for which this thread waited for a core since a reading."""
        return self._waits.read_since(before)

    def close(self) -> None:
        """Close the files that readings need."""
        self._waits.close()
