"""What a run is doing: a bar on a terminal, plain lines elsewhere; both on standard error."""

import sys
import time
from types import TracebackType
from typing import Self

import click

__all__ = ["progress"]

# Time between two plain lines, in seconds.
PLAIN_EVERY_S = 10.0


class _Plain:
    """A line as a stage starts, and one every few seconds."""

    def __init__(self) -> None:
        self._title, self._total, self._done, self._said = "", 0, 0, 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to end."""

    def begin(self, title: str, total: int) -> None:
        self._title, self._total, self._done, self._said = title, total, 0, time.monotonic()
        click.echo(f"{title}: {total} steps", err=True)

    def now(self, text: str) -> None:
        if time.monotonic() - self._said >= PLAIN_EVERY_S:
            self._said = time.monotonic()
            click.echo(f"{self._title}: {self._done} of {self._total} done, now {text}", err=True)

    def done(self) -> None:
        self._done += 1


class _Bar:
    """A bar with what is done now and an estimate of what is left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[now]}", markup=True),
            console=Console(stderr=True),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, title: str, total: int) -> None:
        self._task = self._progress.add_task(title, total=total, now="")

    def now(self, text: str) -> None:
        if self._task is not None:
            width = max(self._progress.console.width - 62, 10)
            self._progress.update(self._task, now=text[:width].replace("[", r"\["))

    def done(self) -> None:
        if self._task is not None:
            self._progress.advance(self._task)


def progress() -> "_Plain | _Bar":
    """Where to say what is done; a context."""
    return _Bar() if sys.stderr.isatty() else _Plain()
