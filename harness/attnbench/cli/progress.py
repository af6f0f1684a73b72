"""What a run is doing, and what is left of it: a bar on a terminal, plain lines elsewhere; both on standard error."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from statistics import fmean, median
from threading import Lock
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
        # Steps are done in several threads.
        self._counting = Lock()
        self.begin(0)

    def begin(self, total: int, abreast: int = 1) -> None:
        """A stage of so many steps starts, so many of them at a time."""
        self.total, self.made = total, 0
        # When the last steps were done, as many as are under way at a time.
        self._ends_s = deque([self._clock()] * abreast, maxlen=abreast)
        # Seconds of every step by its label, in the order in which labels were met first.
        self._took_s: dict[str, list[float]] = {}
        self._last_label: str | None = None
        self._round_ended = False

    def done(self, label: str | None = None) -> None:
        """A step is done; one without a label had been done before, and says nothing of the others.

        Where several are under way at a time, a step took its share of the time in which as many were done.
        """
        with self._counting:
            self.made += 1
            now_s = self._clock()
            took_s = (now_s - self._ends_s[0]) / len(self._ends_s)
            self._ends_s.append(now_s)
            if label is not None:
                self._round_ended = self._round_ended or label in self._took_s
                self._took_s.setdefault(label, []).append(took_s)
                self._last_label = label

    def left_s(self) -> tuple[float, float | None] | None:
        """Least and most seconds that the rest of the stage will take; None where nothing was seen, or no most."""
        left = self.total - self.made
        if not self._took_s or self._last_label is None or left <= 0:
            return None if left > 0 else (0.0, 0.0)
        passed_s = self._clock() - self._ends_s[-1]
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

    def begin(self, title: str, total: int, *, abreast: int = 1) -> None:
        self._title, self._said = title, time.monotonic()
        self._pace.begin(total, abreast)
        click.echo(f"{title}: {total} step{'s' * (total != 1)}", err=True)

    def now(self, text: str) -> None:
        if time.monotonic() - self._said >= PLAIN_EVERY_S:
            self._said = time.monotonic()
            pace = self._pace
            click.echo(
                f"{self._title}: {pace.made} of {pace.total} done, {spoken(pace.left_s())}, now {text}", err=True
            )

    def done(self, label: str | None = None) -> None:
        self._pace.done(label)


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

    def begin(self, title: str, total: int, *, abreast: int = 1) -> None:
        self._pace.begin(total, abreast)
        self._task = self._progress.add_task(title, total=total, now="")

    def now(self, text: str) -> None:
        if self._task is not None:
            width = max(self._progress.console.width - 76, 10)
            self._progress.update(self._task, now=text[:width].replace("[", r"\["))

    def done(self, label: str | None = None) -> None:
        self._pace.done(label)
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
