"""The jobs that the options of a command describe; with ``--resume``, the job of the stored run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from attnbench.cli.options import OUTPUT_FILES
from attnbench.jobs.command_lines import OUTPUTS
from attnbench.jobs.fields import Field, parse_fields
from attnbench.jobs.job import RecordedJob, build
from attnbench.jobs.stored import resume_job
from attnbench.jobs.values import COUNTS
from attnbench.plugins.file_objects import complete_name
from attnbench.records.run_file import StoredRun, find_runs, read_run

__all__ = ["build_job", "build_jobs", "list_outputs"]

J = TypeVar("J", bound=RecordedJob)
# Several numbers of threads: each is a job of its own.
THREADS = Field(option="--threads", kind=COUNTS)


def build_job(kind: type[J], raw: Mapping[str, Any], resume: str | None = None) -> tuple[J, StoredRun | None]:
    """Return the job that the words of a command describe, and the run that it resumes; None: a new run.

    Raises: JobError for a value that cannot be used, or that contradicts the run to resume; PluginError for a file
    that does not have one object; ResultsError where there is no such run.
    """
    words = {name: value for name, value in raw.items() if value is not False}
    if "implementations" in words:
        # A file stands for the object in it: results, exit code and certificate have the name of the object.
        words["implementations"] = tuple(map(complete_name, words["implementations"]))
    if resume is None:
        return build(kind, words), None
    (path,) = find_runs(Path(raw["results"] or "results"), [resume])
    stored = read_run(path)
    return resume_job(stored, kind, words, resume), stored


def build_jobs(kind: type[J], raw: Mapping[str, Any], resume: str | None = None) -> list[tuple[J, StoredRun | None]]:
    """Return a job as ``build_job`` does for each number of threads.

    A run has one number of threads, and times are compared within one number only.

    Raises: JobError; UsageError where one file would have to hold several runs.
    """
    counts = parse_fields({"threads": THREADS}, {"threads": raw["threads"]}).get("threads", (None,))
    if len(counts) > 1:
        params = click.get_current_context().params
        if several := [option for name, option in {**OUTPUT_FILES, "resume": "--resume"}.items() if params.get(name)]:
            raise click.UsageError(
                f"{several[0]}: each number of threads is a run of its own; name one number, got --threads "
                f"{raw['threads']}"
            )
    return [build_job(kind, {**raw, "threads": count}, resume) for count in counts]


def list_outputs() -> list[str]:
    """Return the words of the options of this command that name files to write."""
    context = click.get_current_context()
    files = {
        one.opts[0]: context.params[one.name or ""]
        for one in context.command.params
        if one.opts[0] in OUTPUTS and one.name != "resume"
    }
    return [word for option, file in files.items() if file for word in (option, getattr(file, "name", str(file)))]
