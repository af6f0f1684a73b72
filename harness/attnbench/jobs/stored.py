"""Jobs in run files."""

import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from attnbench.jobs.command_lines import parse_command, strip_folder
from attnbench.jobs.errors import JobError
from attnbench.jobs.fields import FIELDS, name_option, parse_fields
from attnbench.jobs.job import COMMANDS, RecordedJob, parse, require_here
from attnbench.records.run_file import StoredRun
from attnbench.records.types import Run, StoredJob

__all__ = ["FREE", "PLACES", "read_job", "read_options", "resume_job", "store_job"]

# Fields that a resumed job does not take from the stored run: folders, which are stored without their own folders.
PLACES = ("results", "reports")
# Fields that may differ from those of the stored run. The time-out limits the waiting time, and does not change what is
# measured.
FREE = frozenset({*PLACES, "timeout_s"})

J = TypeVar("J", bound=RecordedJob)


def store_job(job: RecordedJob) -> StoredJob:
    """Return a job as a run file stores it; paths outside the working directory lose their folders."""
    options = {}
    for one in fields(job):
        value = getattr(job, one.name)
        # 0 is a value, although it equals False.
        if value is not None and value is not False and value != ():
            options[FIELDS[one.name].stored or one.name] = _make_plain(value)
    return StoredJob(command=job.command, options=options)


def read_job(run: Run) -> RecordedJob:
    """Return the job of a stored run; a run of a schema before 8 has only the command line.

    Raises: JobError where this version does not know the command or a field, or a value cannot be used.
    """
    if not run.job.command:
        command, words = parse_command(run.command)
        return parse(COMMANDS[command], words)
    command = run.job.command
    if command not in COMMANDS:
        raise JobError(None, "attnbench {name} has no job that can be repeated", name=command)
    kind = COMMANDS[command]
    return parse(kind, read_options(kind, run.job.options))


def read_options(kind: type[RecordedJob], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields of a kind of job that a file stores.

    Raises: JobError where this version does not know a field.
    """
    names = {FIELDS[one.name].stored or one.name: one.name for one in fields(kind)}
    if unknown := [name for name in options if name not in names]:
        raise JobError(
            None, "this version of attnbench {command} does not know {name!r}: upgrade attnbench", command=kind.command,
            name=unknown[0],
        )  # fmt: skip
    return {names[name]: value for name, value in options.items()}


def resume_job(stored: StoredRun, kind: type[J], raw: Mapping[str, Any], run: str) -> J:
    """Return the job of a stored run; of the fields that the user gives, only those in ``FREE`` may differ.

    ``run`` is the name by which the user calls the run.

    Raises: JobError where the run is of another kind, its job cannot be read, or a field differs.
    """
    before = stored.run
    try:
        job = read_job(before)
    except JobError as error:
        raise JobError(
            "resume", "{command!r} cannot be repeated: {fault}", command=before.command, fault=error
        ) from error  # fmt: skip
    if type(job) is not kind:
        raise JobError(
            "resume", "{run} was started by {command!r}, not by attnbench {own}", run=run, command=before.command,
            own=kind.command,
        )  # fmt: skip
    own = parse_fields({one.name: FIELDS[one.name] for one in fields(kind)}, raw)
    for name in own.keys() - FREE:
        if _reduce(getattr(job, name)) != _reduce(own[name]):
            raise JobError(
                "resume", "{run} was started {before}, got {got}: leave this argument out, or start a new run without "
                "{resume}", run=run, before=_describe(name, getattr(job, name)), got=_join_words(name, own[name]),
            )  # fmt: skip
    kept = {name: Path(name) for name in PLACES if hasattr(job, name)}
    resumed = replace(job, **kept | own)
    require_here(resumed)
    return resumed


def _describe(name: str, value: Any) -> str:
    words = _join_words(name, value) if value not in (None, ()) else ""
    return f"with {words}" if words else f"without {name_option(name)}"


def _join_words(name: str, value: Any) -> str:
    return shlex.join(FIELDS[name].write_words(value))


def _reduce(value: Any) -> Any:
    """Return a value without folders and order."""
    if isinstance(value, tuple):
        return sorted(map(str, map(_make_plain, value)))
    return _make_plain(value)


def _make_plain(value: Any) -> Any:
    """Return a value as JSON has it, without folders."""
    if isinstance(value, Path | str):
        return strip_folder(str(value))
    if isinstance(value, tuple | list):
        return [_make_plain(one) for one in value]
    return value
