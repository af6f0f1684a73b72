"""CPU time of a process by what it was spent on, all threads together; the outermost of nested parts counts."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

__all__ = ["answer", "counted", "spending", "started"]

_SECONDS: defaultdict[str, float] = defaultdict(float)
_open: list[str] = []


@contextmanager
def spending(on: str) -> Iterator[None]:
    """Count what is done here as spent on something."""
    begin = time.process_time()
    _open.append(on)
    try:
        yield
    finally:
        _open.pop()
        if not _open:
            _SECONDS[on] += time.process_time() - begin


def counted(on: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its time counted as spent on something."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with spending(on):
            return function(*arguments, **named)

    return call


def started() -> None:
    """Everything so far was the start of the process."""
    _SECONDS["process start"] = time.process_time()


def answer() -> dict[str, float]:
    """Seconds so far by what they were spent on; the rest is the harness's own."""
    total = time.process_time()
    return dict(_SECONDS) | {"the harness itself": total - sum(_SECONDS.values())}
