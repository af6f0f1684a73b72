"""A deliberately wrong implementation, and the check that must catch it."""

from dataclasses import dataclass

from attnbench.interface import Implementation

__all__ = ["Mutant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mistake, as it happens in real code."""

    implementation: Implementation
    # Check that must fail on it.
    caught_by: str
    # Where the mistake was seen, or why it happens.
    why: str

    @property
    def name(self) -> str:
        """Name of the mistake."""
        return self.implementation.name
