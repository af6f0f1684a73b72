"""CPU time of all threads of a process, divided among the parts of its work.

If one part runs inside another part, its time counts for the outermost part only.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

__all__ = ["SECONDS_FOLDER", "count_as", "count_calls_as", "end_process_start", "read_seconds"]

# Environment variable with the folder of the files in which candidate workers store their CPU times.
SECONDS_FOLDER = "ATTNBENCH_SECONDS"

_SECONDS: defaultdict[str, float] = defaultdict(float)
_open: list[str] = []


@contextmanager
def count_as(part: str) -> Iterator[None]:
    """Context manager: CPU time that is used inside it counts for the given part of the work."""
    begin = time.process_time()
    _open.append(part)
    try:
        yield
    finally:
        _open.pop()
        if not _open:
            _SECONDS[part] += time.process_time() - begin


def count_calls_as(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that the CPU time of its calls counts for the given part of the work."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with count_as(part):
            return function(*arguments, **named)

    return call


def end_process_start() -> None:
    """Count all CPU time that this process has used so far as the start of the process."""
    _SECONDS["process start"] = time.process_time()


def read_seconds() -> dict[str, float]:
    """Return the CPU seconds that each part of the work has used so far.

    CPU time that was counted for no part is returned as the part "the harness itself".
    """
    total = time.process_time()
    return dict(_SECONDS) | {"the harness itself": total - sum(_SECONDS.values())}
