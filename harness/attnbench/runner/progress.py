"""Where a run says what it is doing."""

from typing import Protocol

__all__ = ["NoProgress", "Progress"]


class Progress(Protocol):
    """Where a run says what it is doing."""

    def begin(self, title: str, total: int, *, abreast: int = 1) -> None:
        """A stage of so many steps starts, so many of them at a time."""

    def now(self, text: str) -> None:
        """What is being done at this moment."""

    def done(self, label: str | None = None) -> None:
        """One step is done, which takes about as long as others of this label; None: it had been done before."""


class NoProgress:
    """Says nothing."""

    def begin(self, title: str, total: int, *, abreast: int = 1) -> None:
        """Nothing."""

    def now(self, text: str) -> None:
        """Nothing."""

    def done(self, label: str | None = None) -> None:
        """Nothing."""
