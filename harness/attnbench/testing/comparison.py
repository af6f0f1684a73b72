"""What came of comparing several outputs of the same call."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Comparison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Which of several outputs of one call are right, and how far they are apart."""

    # What is wrong with each output, in words; empty if it is within the budget.
    faults: Mapping[str, str]
    # Largest error of each output, and the largest error that is allowed.
    errors: Mapping[str, float]
    allowed: float
    # Largest difference of any two outputs that are within the budget, and the largest that two right outputs may have.
    apart: float
    allowed_apart: float

    @property
    def right(self) -> tuple[str, ...]:
        """Names of the outputs within the budget."""
        return tuple(name for name, fault in self.faults.items() if not fault)

    @property
    def wrong(self) -> tuple[str, ...]:
        """Names of the outputs that are wrong."""
        return tuple(name for name, fault in self.faults.items() if fault)
