"""What a run is doing, and what is left of it: a bar on a terminal, plain lines elsewhere; both on standard error."""

import math
import sys
import time
from collections.abc import Callable
from statistics import fmean, median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from rich.progress import ProgressColumn, TaskID

__all__ = ["Pace", "progress", "spoken"]

# Time between two plain lines, in seconds.
PLAIN_EVERY_S = 10.0
# How often a bar is drawn again, a second: drawing takes time from what is measured beside it.
REDRAWN_PER_S = 1
# Ends of a range that are told as one number: so many times as long, or so many seconds longer.
CLOSE, CLOSE_S = 1.25, 5.0
NOT_KNOWN = "time left not known yet"
# Seconds and minutes are told up to these numbers of seconds, hours beyond.
SECONDS_UP_TO_S, MINUTES_UP_TO_S = 90, 5400


class Pace:
    """How long the steps of a stage have taken, and how long those that are left may take.

    Steps are far from alike: a long sequence takes a thousand times what a short one does, and they come in order of
    length, so that a mean says little. They come in rounds, though: the same cases for every implementation, or in
    every process. A step that is left is taken to be what the same step was in the rounds before.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begin(0)

    def begin(self, total: int) -> None:
        """A stage of so many steps starts."""
        self.total, self.made = total, 0
        # Seconds of every step by its label, in the order in which labels were met first.
        self._took_s: dict[str, list[float]] = {}
        self._label: str | None = None
        self._last_label: str | None = None
        self._round_ended = False
        self._last_s = self._clock()

    def now(self, text: str) -> None:
        """The last word of what is being done, a case, is the label of the step."""
        if self._label is None:
            self._label = text.rpartition(" ")[2]

    def done(self) -> None:
        """A step is done; one that was never begun had been done before, and says nothing of the others."""
        self.made += 1
        took_s, self._last_s = self._clock() - self._last_s, self._clock()
        if self._label is not None:
            self._round_ended = self._round_ended or self._label in self._took_s
            self._took_s.setdefault(self._label, []).append(took_s)
            self._last_label, self._label = self._label, None

    def left_s(self) -> tuple[float, float | None] | None:
        """Least and most seconds that the rest of the stage will take; None where nothing was seen, or no most."""
        left = self.total - self.made
        if not self._took_s or self._last_label is None or left <= 0:
            return None if left > 0 else (0.0, 0.0)
        passed_s = self._clock() - self._last_s
        if not self._round_ended:
            known = [took_s for one in self._took_s.values() for took_s in one]
            # What comes later is seldom quicker.
            return max(left * min(fmean(known), median(known)) - passed_s, 0.0), None
        labels = list(self._took_s)
        begin = labels.index(self._last_label) + 1
        coming = [self._took_s[labels[(begin + number) % len(labels)]] for number in range(left)]
        # The step at hand is never taken to be more than done.
        least, most = (max(end(coming[0]) - passed_s, 0.0) + sum(map(end, coming[1:])) for end in (min, max))
        return least, most


def spoken(left_s: tuple[float, float | None] | None) -> str:
    """What is left of a stage, in words."""
    if left_s is None:
        return NOT_KNOWN
    least, most = left_s
    if most is None:
        return f"{_time(least)} or more left"
    if most <= max(CLOSE * least, least + CLOSE_S):
        return f"about {_time((least + most) / 2)} left"
    return f"{_time(least)} to {_time(most)} left"


def _time(seconds: float) -> str:
    if seconds <= SECONDS_UP_TO_S:
        return f"{math.ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds <= MINUTES_UP_TO_S else f"{seconds / 3600:.1f} h"


class _Plain:
    """A line as a stage starts, and one every few seconds."""

    def __init__(self) -> None:
        self._title, self._said, self._pace = "", 0.0, Pace()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to end."""

    def begin(self, title: str, total: int) -> None:
        self._title, self._said = title, time.monotonic()
        self._pace.begin(total)
        click.echo(f"{title}: {total} steps", err=True)

    def now(self, text: str) -> None:
        self._pace.now(text)
        if time.monotonic() - self._said >= PLAIN_EVERY_S:
            self._said = time.monotonic()
            pace = self._pace
            click.echo(
                f"{self._title}: {pace.made} of {pace.total} done, {spoken(pace.left_s())}, now {text}", err=True
            )

    def done(self) -> None:
        self._pace.done()


class _Bar:
    """A bar with what is done now and an estimate of what is left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._pace = Pace()
        self._progress = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _left_column(self._pace),
            TextColumn("[dim]{task.fields[now]}", markup=True),
            console=Console(stderr=True),
            refresh_per_second=REDRAWN_PER_S,
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
        self._pace.begin(total)
        self._task = self._progress.add_task(title, total=total, now="")

    def now(self, text: str) -> None:
        self._pace.now(text)
        if self._task is not None:
            width = max(self._progress.console.width - 76, 10)
            self._progress.update(self._task, now=text[:width].replace("[", r"\["))

    def done(self) -> None:
        self._pace.done()
        if self._task is not None:
            self._progress.advance(self._task)


def _left_column(pace: Pace) -> "ProgressColumn":
    """Column of a bar that says what is left of the stage at hand; those before it are done."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Left(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text("" if task.finished else spoken(pace.left_s()))

    return Left()


def progress() -> "_Plain | _Bar":
    """Where to say what is done; a context."""
    return _Bar() if sys.stderr.isatty() else _Plain()
