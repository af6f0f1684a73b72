"""``--threads`` with several numbers: each number is measured by processes of its own, and stored as a run of its own.

A run has one number of threads, and times are compared within one number only.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

__all__ = ["choose_exit_code", "measure_each"]

T = TypeVar("T")


def measure_each(given: Mapping[str, Any], measure: Callable[[dict[str, Any]], T]) -> list[T]:
    """Call ``measure`` with the options for each number of threads, and return what it returns.

    Raises: UsageError where one file would have to hold several runs.
    """
    counts: tuple[int, ...] = given["threads"] or ()
    if len(counts) > 1 and given["json_file"]:
        raise click.UsageError(
            f"--json: each number of threads is a run of its own; name one number, got --threads {_join(counts)}"
        )
    if len(counts) > 1 and given["resume"]:
        raise click.UsageError(f"--resume: a run has one number of threads, got --threads {_join(counts)}")
    made = []
    for number, count in enumerate(counts or (None,), start=1):
        if len(counts) > 1:
            click.echo(f"threads {count}: run {number} of {len(counts)}", err=True)
        made.append(measure(dict(given) | {"threads": count}))
    return made


def choose_exit_code(codes: list[int]) -> int:
    """Return the exit code of several runs: 1 if a run has a failure, else 3 if a run has no verdict, else 0."""
    return min((code for code in codes if code), default=0)


def _join(counts: tuple[int, ...]) -> str:
    return ",".join(map(str, counts))
