"""The runs of a command with several numbers of threads."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from attnbench.jobs.job import RecordedJob
from attnbench.records.run_file import StoredRun

__all__ = ["choose_exit_code", "measure_each"]

J = TypeVar("J", bound=RecordedJob)
T = TypeVar("T")


def measure_each(jobs: Sequence[tuple[J, StoredRun | None]], measure: Callable[[J, StoredRun | None], T]) -> list[T]:
    """Call ``measure`` with each job and the run that it resumes, and return what it returns."""
    made = []
    for number, (job, resumed) in enumerate(jobs, start=1):
        if len(jobs) > 1:
            click.echo(f"threads {job.threads}: run {number} of {len(jobs)}", err=True)
        made.append(measure(job, resumed))
    return made


def choose_exit_code(codes: list[int]) -> int:
    """Return the exit code of several runs: 1 if a run has a failure, else 3 if a run has no verdict, else 0."""
    return min((code for code in codes if code), default=0)
