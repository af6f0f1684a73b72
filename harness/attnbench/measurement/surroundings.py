"""What is done right before and right after each call that is sampled."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from attnbench.measurement.scheduler import Reading

__all__ = ["Ended", "Surroundings", "Unwatched"]


class Ended(NamedTuple):
    """What was read at the beginning and right after the end of a sampled call."""

    # The sample, on the clock of the sampling, in nanoseconds.
    begin_ns: int
    end_ns: int
    # Processor time of this thread, and of the process, after the call, in nanoseconds.
    thread_ns: int
    process_ns: int
    # Whether the garbage collection was on after the call.
    collects: bool
    # The scheduler's counters before and after the call.
    before: Reading
    reading: Reading


class Surroundings(Protocol):
    """What is done right before and right after each call, outside of the timed interval."""

    def expect(self, counts: Mapping[str, int]) -> None:
        """Get the planned number of samples of each call, by the call's name, before the first sample."""

    def prepare(self, name: str, cycle: int) -> None:
        """Prepare a call of ``name``; ``cycle`` is 0 for calls of which no sample is taken."""

    def inspect(self, name: str, result: object, ended: Ended) -> None:
        """Inspect the result of a sampled call; an exception ends the sampling."""

    def note_freed(self, name: str, freeing_ns: int) -> None:
        """Learn that the result of a sampled call was freed, in this processor time; an exception ends the sampling."""


class Unwatched:
    """Surroundings in which nothing is done."""

    def expect(self, counts: Mapping[str, int]) -> None:
        """Do nothing."""

    def prepare(self, name: str, cycle: int) -> None:
        """Do nothing."""

    def inspect(self, name: str, result: object, ended: Ended) -> None:
        """Do nothing."""

    def note_freed(self, name: str, freeing_ns: int) -> None:
        """Do nothing."""
