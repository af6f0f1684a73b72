"""Errors raised when a child process sends no reply. The command line imports this module to catch these errors."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Not imported when a command starts, because facts need msgspec.
    from attnbench.records.outcome_facts import Crashed, TimedOut

__all__ = ["ChildDied", "ChildTimeout"]


class ChildDied(Exception):
    """Raised if the child ended before it answered; ``fact`` says how it ended."""

    def __init__(self, fact: "Crashed") -> None:
        super().__init__(fact)
        self.fact = fact


class ChildTimeout(Exception):
    """Raised if the child did not answer in time; the child has been killed."""

    def __init__(self, fact: "TimedOut") -> None:
        super().__init__(fact)
        self.fact = fact
