"""The interface by which a run reports its progress."""

from typing import Protocol

__all__ = ["NoProgress", "Progress"]


class Progress(Protocol):
    """Receives reports of a run's progress."""

    def begin(self, title: str, total: int, *, parallel: int = 1) -> None:
        """Start a stage of ``total`` steps, of which ``parallel`` run at a time."""

    def now(self, text: str) -> None:
        """Report the step that is running."""

    def done(self, label: str | None = None) -> None:
        """Report one finished step.

        Steps with the same label take about the same time. A step without a label took no time in this run, for example
        because an earlier run finished it.
        """


class NoProgress:
    """Discards all reports."""

    def begin(self, title: str, total: int, *, parallel: int = 1) -> None:
        """Do nothing."""

    def now(self, text: str) -> None:
        """Do nothing."""

    def done(self, label: str | None = None) -> None:
        """Do nothing."""
