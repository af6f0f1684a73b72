"""An account of elapsed time: what was spent within samples, and what was spent between them."""

import time
from dataclasses import dataclass, field

__all__ = ["Account"]


@dataclass(slots=True)
class Account:
    """Account of the time since a moment: every nanosecond is within a sample or between the samples.

    The sum of all samples and ``between_ns`` is therefore exactly the elapsed time, unless a sample was changed after
    it was taken.
    """

    begin_ns: int = field(default_factory=time.perf_counter_ns)
    between_ns: int = 0
    _last_ns: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._last_ns = self.begin_ns

    def add_sample(self, begin_ns: int, end_ns: int) -> None:
        """Add a sample that begins and ends at these times of the clock."""
        self.between_ns += begin_ns - self._last_ns
        self._last_ns = end_ns

    def close(self) -> int:
        """End the account, and return the elapsed time in nanoseconds."""
        end_ns = time.perf_counter_ns()
        self.between_ns += end_ns - self._last_ns
        self._last_ns = end_ns
        return end_ns - self.begin_ns
