"""Two calls in two threads that take turns at chosen lines of Python, so that a race shows in every run.

Threads that run freely meet at another point in every run, and seldom at the one that matters. Here each thread stops
before a given line, counted in the code that is not torch's, until the other thread has reached its own line or ended.
"""

import math
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Generic, TypeVar

import torch

__all__ = ["LIMIT_S", "Outcome", "Stoppable", "Turns", "count_lines", "take_turns"]

Result = TypeVar("Result")
# A call that is given a function; what this function makes of a part of the call can stop at the part's lines.
Stoppable = Callable[[Callable[[Callable[..., Any]], Callable[..., Any]]], Result]
# Seconds for which a call waits for the other one to reach its line. A call that waits for a lock of the other never
# does; then the other goes on.
TURN_S = 0.2
# Seconds without an end after which two calls wait for one another. A call of these sizes takes milliseconds.
LIMIT_S = 10.0
TORCH, STANDARD = (str(Path(str(module.__file__)).parent) for module in (torch, threading))


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Result]):
    """What a call in a thread returned or raised; ``ended`` is false if it has not ended after ``LIMIT_S``."""

    result: Result | None
    error: Exception | None
    ended: bool


@dataclass(frozen=True, slots=True)
class Turns(Generic[Result]):
    """The outcomes of two calls; ``blocked``: the second one waited for the end of the first one."""

    first: Outcome[Result]
    second: Outcome[Result]
    blocked: bool


def count_lines(call: Stoppable[Any]) -> int:
    """Return the number of different lines, outside torch, at which a call in a thread of its own can stop.

    Raises: what the call raises.
    """
    one = _Thread(call, math.inf)
    one.start()
    error = one.finish(LIMIT_S).error
    if error is not None:
        raise error
    return len(one.lines)


def take_turns(first: Stoppable[Result], second: Stoppable[Result], *, line: int, until: int | None) -> Turns[Result]:
    """Start ``first``; before its line ``line``, start ``second``; before the line ``until`` of this, end ``first``.

    With ``until=None`` the second call ends while the first one waits.
    """
    one, other = _Thread(first, line), _Thread(second, until)
    one.start()
    one.wait()
    other.start()
    blocked = not other.wait()
    found = one.finish(LIMIT_S)
    return Turns(found, other.finish(LIMIT_S if found.ended else TURN_S), blocked)


class _Thread(Generic[Result]):
    """A call in a thread of its own that stops before one of its lines until it may go on."""

    def __init__(self, call: Stoppable[Result], stop: float | None) -> None:
        # Lines that were reached; a line counts when it is reached for the first time.
        self.lines: set[tuple[CodeType, int]] = set()
        self._call = call
        self._stop = stop
        self._result: Result | None = None
        self._error: Exception | None = None
        # Set when the call has reached its line, or has ended.
        self._there = threading.Event()
        self._may_go_on = threading.Event()
        # A thread that waits for ever must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the call."""
        self._thread.start()

    def wait(self) -> bool:
        """Wait until the call has reached its line or has ended; return whether it did within ``TURN_S``."""
        return self._there.wait(TURN_S)

    def finish(self, limit_s: float) -> Outcome[Result]:
        """Let the call go on from its line, and return what it returned or raised."""
        self._may_go_on.set()
        self._thread.join(limit_s)
        return Outcome(self._result, self._error, not self._thread.is_alive())

    def _run(self) -> None:
        try:
            self._result = self._call(self._make_stoppable)
        except Exception as error:  # noqa: BLE001  # an implementation may raise anything; the caller judges it
            self._error = error
        finally:
            self._there.set()

    def _make_stoppable(self, part: Callable[..., Any]) -> Callable[..., Any]:
        if self._stop is None:
            return part

        def traced(*given: Any, **named: Any) -> Any:
            sys.settrace(self._enter)
            try:
                return part(*given, **named)
            finally:
                sys.settrace(None)

        return traced

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """Trace the lines of a function unless it is foreign."""
        return None if _is_foreign(frame.f_code) else self._reach

    def _reach(self, frame: FrameType, event: str, _argument: Any) -> Any:
        line = frame.f_code, frame.f_lineno
        if event == "line" and line not in self.lines:
            if len(self.lines) == self._stop:
                sys.settrace(None)
                self._there.set()
                self._may_go_on.wait(LIMIT_S)
            self.lines.add(line)
        return self._reach


@cache
def _is_foreign(code: CodeType) -> bool:
    """Whether code belongs to torch or to the standard library, or has no file."""
    place = code.co_filename
    return place.startswith((TORCH, "<")) or (place.startswith(STANDARD) and "site-packages" not in place)
