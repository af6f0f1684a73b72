"""Command lines that repeat or resume a job."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from attnbench.jobs.errors import JobError
from attnbench.jobs.fields import FIELDS
from attnbench.jobs.job import COMMANDS, RecordedJob
from attnbench.plugins.registry import display_name

__all__ = [
    "OUTPUTS", "format_command", "format_job", "format_reporting", "format_resuming", "name_folders", "parse_command",
    "strip_folder",
]  # fmt: skip

# Options that are no part of a job: the run that is resumed, and files that the command writes.
OUTPUTS = ("--resume", "--json", "--html", "--markdown", "--certificate", "--keep-found")


def format_job(job: RecordedJob) -> str:
    """Return the command line that makes the same job, without defaults and without the folders of paths."""
    return format_command([job.command, *_write_words(job, {one.name for one in fields(job)})])


def format_resuming(job: RecordedJob, run: str, outputs: Iterable[str] = ()) -> str:
    """Return the command line that resumes a run of a job.

    It repeats only what is not stored: folders, ``outputs`` (the words of files that the command writes), and paths
    that the run stores without their folders.
    """
    words = _write_words(job, {"results", "reports"})
    lost = [one for one in FIELDS if (found := _write_words(job, {one})) != list(map(strip_folder, found))]
    words += [word for one in lost if one not in ("results", "reports") for word in _write_words(job, {one})]
    return shlex.join(["attnbench", job.command, "--resume", run, *words, *outputs])


def format_reporting(job: RecordedJob, run: str) -> str:
    """Return the command line that reports on a run of a job."""
    return shlex.join(["attnbench", "report", *_write_words(job, {"results"}), run])


def format_command(words: Iterable[str]) -> str:
    """Return a command line of attnbench without the folders of paths: a folder could reveal a user name."""
    return shlex.join(["attnbench", *map(strip_folder, words)])


def strip_folder(word: str) -> str:
    """Return a word of a command line; a path outside the working directory loses its folders."""
    option, equals, value = word.partition("=")
    value = value or option
    if value.rpartition(":")[0].endswith(".py"):
        return display_name(value)
    if not Path(value).is_absolute() and ".." not in Path(value).parts:
        return word
    return f"{option}={Path(value).name}" if equals else Path(value).name


def name_folders(command: str, folders: Mapping[str, Path]) -> str:
    """Return commands, separated by ";", with the folders that ``strip_folder`` removed from the values of options.

    ``folders`` maps options, such as ``--results``, to the folders in use.
    """
    words = shlex.shlex(command, posix=True, punctuation_chars=";")
    words.whitespace_split, words.commenters = True, ""
    named, option = [], ""
    for word in words:
        named.append(";" if word == ";" else shlex.quote(str(folders.get(option, word))))
        option = word
    return " ".join(named).replace(" ;", ";")


def parse_command(command: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a command, and the words of its fields.

    Raises: JobError where the command or an option is not known.
    """
    try:
        _, name, *words = shlex.split(command)
    except ValueError:
        raise JobError(None, "{command!r} is not a command line", command=command) from None
    if name not in COMMANDS:
        raise JobError(None, "attnbench {name} has no job that can be repeated", name=name)
    options = {FIELDS[one.name].option: one for one in fields(COMMANDS[name])}
    found: dict[str, Any] = {}
    arguments, rest = [], iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        field = options.get(option)
        if not option.startswith("--"):
            arguments.append(word)
        elif field is None and option not in OUTPUTS:
            raise JobError(None, "attnbench {name} has no option {option!r}", name=name, option=option)
        elif field is not None and isinstance(field.default, bool):
            found[field.name] = True
        else:
            value = value if equals else next(rest, "")
            if field is not None:
                found[field.name] = (*found.get(field.name, ()), value) if FIELDS[field.name].repeated else value
    if name == "compare":
        return name, found | dict(zip(("base", "new"), arguments, strict=False))
    return name, found | {"implementations": arguments}


def _write_words(job: RecordedJob, names: set[str]) -> list[str]:
    """Return the words of the fields with these names whose values are no defaults."""
    own = {one.name: getattr(job, one.name) for one in fields(job) if one.name in names}
    default = {one.name: one.default for one in fields(job) if one.default is not MISSING}
    return [
        word
        for name, field in FIELDS.items()
        if name in own and own[name] is not None and own[name] != default.get(name)
        for word in field.write_words(own[name])
    ]
