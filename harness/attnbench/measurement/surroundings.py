"""What is done right before and right after each call that is sampled."""

from collections.abc import Mapping
from typing import Protocol

__all__ = ["Surroundings", "Unwatched"]


class Surroundings(Protocol):
    """What is done right before and right after each call, outside of the timed interval."""

    def expect(self, counts: Mapping[str, int]) -> None:
        """Get the planned number of samples of each call, by the call's name, before the first sample."""

    def prepare(self, name: str, cycle: int) -> None:
        """Prepare a call of ``name``; ``cycle`` is 0 for calls of which no sample is taken."""

    def inspect(self, name: str, result: object, end: int, ended_ns: int) -> None:
        """Inspect the result of a sampled call; an exception ends the sampling.

        ``end`` is the end of the sample on the clock of the sampling. ``ended_ns`` is the processor time of this thread
        right after it. Unit: nanoseconds.
        """


class Unwatched:
    """Surroundings in which nothing is done."""

    def expect(self, counts: Mapping[str, int]) -> None:
        """Do nothing."""

    def prepare(self, name: str, cycle: int) -> None:
        """Do nothing."""

    def inspect(self, name: str, result: object, end: int, ended_ns: int) -> None:
        """Do nothing."""
