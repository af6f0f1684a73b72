"""Progress of a run and the time left: a bar on a terminal, plain lines elsewhere. Both go to standard error."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import TextIOBase
from statistics import fmean, median
from threading import Lock, RLock
from types import TracebackType
from typing import Self, TextIO

from attnbench.report.console import measure_width
from attnbench.runner.progress import NoProgress

__all__ = [
    "Pace",
    "ShownProgress",
    "describe_time_left",
    "format_time",
    "is_watched",
    "show_interactive_progress",
    "show_progress",
    "write_line",
]

# Shortest time between two lines of plain progress, in seconds.
PLAIN_EVERY_S = 10.0
# Shortest time between two drawings of the bar, in seconds: drawing takes CPU time from what is measured then.
REDRAWN_EVERY_S = 1.0
# Length of the bar, in characters.
BAR = 24
# The time left is printed as one number, not as a range, if the upper end of the range is at most CLOSE times the
# lower end, or at most CLOSE_S seconds above the lower end.
CLOSE, CLOSE_S = 1.25, 5.0
NOT_KNOWN = "time left not known yet"
# Limits in seconds. A duration of at most SECONDS_UP_TO_S is printed in seconds, a longer one of at
# most MINUTES_UP_TO_S in minutes, and any longer one in hours.
SECONDS_UP_TO_S, MINUTES_UP_TO_S = 90, 5400


class Pace:
    """Durations of the finished steps of a stage, and an estimate for the remaining steps.

    The durations of steps differ widely: a step with a long sequence can take a thousand times as
    long as one with a short sequence. Steps come in order of sequence length, so the mean duration
    of the finished steps is a poor estimate. But steps come in rounds: each implementation, or each
    process, runs the same cases. A case has the same label in every round. The estimate for a
    remaining step comes from the steps with the same label in earlier rounds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Lock held while a finished step is counted: several threads report finished steps.
        self._counting = Lock()
        self.begin(0)

    def begin(self, total: int, parallel: int = 1) -> None:
        """Start a stage of ``total`` steps, of which ``parallel`` run at the same time."""
        self.total, self.made = total, 0
        # End times of the last ``parallel`` finished steps.
        self._ends_s = deque([self._clock()] * parallel, maxlen=parallel)
        # Durations of the finished steps, in seconds, by label. Labels are in the order in which
        # their first steps finished.
        self._took_s: dict[str, list[float]] = {}
        self._last_label: str | None = None
        self._round_ended = False

    def done(self, label: str | None = None) -> None:
        """Count a finished step, and store its duration under its label.

        A step without a label was not run now: it was finished before the run was resumed, or it
        is skipped. Its duration is not stored. If n steps run in parallel, the stored duration is shorter than the step
        itself: it is the time since the n-th last step ended, divided by n. So the stored
        durations add up to about the elapsed time.
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

    def estimate_left_s(self) -> tuple[float, float | None] | None:
        """Return the smallest and the largest estimate of the time left in the stage, in seconds.

        The largest estimate is None until a label has occurred a second time, that is, during the
        first round. The result is None if no step with a label has finished yet.
        """
        left = self.total - self.made
        if not self._took_s or self._last_label is None or left <= 0:
            return None if left > 0 else (0.0, 0.0)
        passed_s = self._clock() - self._ends_s[-1]
        if not self._round_ended:
            known = [took_s for one in self._took_s.values() for took_s in one]
            # Later steps are seldom quicker than finished steps, so this estimate is a lower limit.
            return max(left * min(fmean(known), median(known)) - passed_s, 0.0), None
        labels = list(self._took_s)
        begin = labels.index(self._last_label) + 1
        coming = [self._took_s[labels[(begin + number) % len(labels)]] for number in range(left)]
        # A running step that has already exceeded its estimate has 0 s left, not less.
        least, most = (max(end(coming[0]) - passed_s, 0.0) + sum(map(end, coming[1:])) for end in (min, max))
        return least, most


def describe_time_left(left_s: tuple[float, float | None] | None) -> str:
    """Format the result of ``Pace.estimate_left_s``: the least and the most seconds left."""
    if left_s is None:
        return NOT_KNOWN
    least, most = left_s
    if most is None:
        return f"{format_time(least)} or more left"
    if most <= max(CLOSE * least, least + CLOSE_S):
        return f"about {format_time((least + most) / 2)} left"
    return f"{format_time(least)} to {format_time(most)} left"


def format_time(seconds: float) -> str:
    """Return a duration in words, such as "8 min"."""
    if seconds <= SECONDS_UP_TO_S:
        return f"{math.ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds <= MINUTES_UP_TO_S else f"{seconds / 3600:.1f} h"


class _Plain:
    """Progress as plain lines: one at the start of a stage, then at most one every ``PLAIN_EVERY_S`` seconds."""

    def __init__(self) -> None:
        self._title, self._printed_s, self._pace = "", 0.0, Pace()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: plain lines need no clean-up."""

    def begin(self, title: str, total: int, *, parallel: int = 1) -> None:
        self._title, self._printed_s = title, time.monotonic()
        self._pace.begin(total, parallel)
        write_line(f"{title}: {total} step{'s' * (total != 1)}")

    def now(self, text: str) -> None:
        if time.monotonic() - self._printed_s >= PLAIN_EVERY_S:
            self._printed_s = time.monotonic()
            pace, left = self._pace, describe_time_left(self._pace.estimate_left_s())
            write_line(f"{self._title}: {pace.made} of {pace.total} done, {left}, now {text}")

    def done(self, label: str | None = None) -> None:
        self._pace.done(label)


class _Above(TextIOBase):
    """A stream of a terminal that has the bar in its last line: what is written to it stands above the bar."""

    def __init__(self, file: TextIO, erase: Callable[[], None]) -> None:
        self._file, self._erase = file, erase

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the terminal."""
        return self._file.encoding

    def isatty(self) -> bool:
        """Whether the stream is a terminal, as the wrapped stream is."""
        return self._file.isatty()

    def fileno(self) -> int:
        """Return the number of the wrapped stream."""
        return self._file.fileno()

    def flush(self) -> None:
        """Flush the wrapped stream."""
        self._file.flush()

    def write(self, text: str) -> int:
        """Erase the bar, and write a text; the bar is drawn again with the next step."""
        self._erase()
        return self._file.write(text)


class _Bar:
    """A progress bar in the last line of a terminal, with an estimate of the time left and the current step."""

    def __init__(self) -> None:
        self._pace, self._file, self._title = Pace(), sys.stderr, ""
        # When the bar was drawn; None: it is not shown.
        self._drawn_s: float | None = None
        self._now = ""
        self._drawing = RLock()
        self._redirected = ExitStack()

    def __enter__(self) -> Self:
        self._redirected.enter_context(redirect_stderr(_Above(self._file, self._erase)))
        if sys.stdout.isatty():
            self._redirected.enter_context(redirect_stdout(_Above(sys.stdout, self._erase)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_stage()
        self._redirected.close()

    def begin(self, title: str, total: int, *, parallel: int = 1) -> None:
        self._end_stage()
        self._title, self._now = title, ""
        self._pace.begin(total, parallel)
        self._draw()

    def now(self, text: str) -> None:
        self._now = text
        self._draw()

    def done(self, label: str | None = None) -> None:
        self._pace.done(label)
        self._draw()

    def _end_stage(self) -> None:
        """Leave the bar of a stage that has begun as a line of its own."""
        if self._title:
            self._now = ""
            self._draw(ended=True)
            self._title = ""

    def _draw(self, *, ended: bool = False) -> None:
        """Draw the bar, if it is not shown or was drawn a while ago."""
        with self._drawing:
            now_s = time.monotonic()
            if not ended and self._drawn_s is not None and now_s - self._drawn_s < REDRAWN_EVERY_S:
                return
            self._erase()
            pace = self._pace
            full = BAR if not pace.total else BAR * pace.made // pace.total
            left = "" if pace.made >= pace.total else describe_time_left(pace.estimate_left_s())
            line = f"{self._title:<8} {'━' * full}{' ' * (BAR - full)} {pace.made}/{pace.total} {left} {self._now}"
            # A line as wide as the terminal would begin another one.
            self._file.write(line[: measure_width(self._file) - 1].rstrip() + "\n" * ended)
            self._file.flush()
            self._drawn_s = None if ended else now_s

    def _erase(self) -> None:
        with self._drawing:
            if self._drawn_s is not None:
                # Carriage return, and "erase in line" (ECMA-48).
                self._file.write("\r\x1b[K")
                self._file.flush()
                self._drawn_s = None


class _Silent(NoProgress):
    """Progress that is not shown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""


# A context manager that shows the progress of a run.
ShownProgress = _Plain | _Bar | _Silent


def show_progress() -> ShownProgress:
    """Return a context manager that shows progress: a bar on a terminal, plain lines elsewhere."""
    return _Bar() if sys.stderr.isatty() else _Plain()


def is_watched() -> bool:
    """Whether somebody reads what this process writes to stderr: on a terminal or in a notebook."""
    # A notebook's stderr is no terminal; its kernel is the package ipykernel.
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def write_line(line: str) -> None:
    """Write a line to standard error at once."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def show_interactive_progress(*, wanted: bool) -> ShownProgress:
    """Return a context manager for a call from Python: progress where somebody reads it, if ``wanted``, else none."""
    return show_progress() if wanted and is_watched() else _Silent()
