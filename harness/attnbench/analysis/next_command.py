"""The one command that would decide most of what a summary leaves open."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from attnbench.analysis.plain_names import format_command
from attnbench.analysis.summary import Column, Summary, SummaryTable
from attnbench.jobs.command_lines import format_job
from attnbench.jobs.errors import JobError
from attnbench.jobs.job import ConformJob, ProfileJob, TimedJob, parse
from attnbench.jobs.stored import read_job
from attnbench.jobs.values import Length
from attnbench.records.run_file import StoredRun
from attnbench.records.types import Run

__all__ = ["NextCommand", "find_next_command"]

# ``finish``: a run was not finished. ``check``: what to use is not known to conform, because only the checks before
# timing ran. ``measure``: more processes would lower the bounds of answers.
Kind = Literal["finish", "check", "measure"]
# Processes of the command that measures again: three times as many as a profile begins with.
PROCESSES = 30
# Fields of a job that say what it timed, and that a command repeats.
KEPT = (
    "operators", "passes", "device", "dtype", "cases", "batch", "heads", "head_dim", "width", "kv_heads", "mask",
    "padding", "like", "threads", "memory_bytes", "work_limit_s", "results",
)  # fmt: skip
# Longest value of an option, in characters; an id of a case has about 150.
LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCommand:
    """A command line, and what it is for."""

    kind: Kind
    command: str
    # Name of the machine on which it must run.
    machine: str


def find_next_command(summary: Summary, runs: Sequence[StoredRun]) -> NextCommand | None:
    """Return the command that would decide most; None if nothing is open, or if no command would decide it."""
    for found in summary.incomplete:
        if found.resuming:
            return NextCommand(kind="finish", command=found.resuming, machine=found.machine)
    made = {stored.run.id: stored.run for stored in runs}
    tables = [table for table in summary.tables if table.answers]
    if unchecked := [table for table in tables if not table.conforming]:
        where = (unchecked[0].place.machine, unchecked[0].place.device)
        return _make_check([one for one in unchecked if (one.place.machine, one.place.device) == where])
    open_ = {id(table): _list_open(table) for table in tables}
    most = max(tables, key=lambda table: len(open_[id(table)]), default=None)
    return _make_measuring(most, open_[id(most)], made) if most and open_[id(most)] else None


def _make_check(tables: Sequence[SummaryTable]) -> NextCommand | None:
    """Return the command that checks what to use by these tables, which are of one machine and device."""
    names = dict.fromkeys(answer.name for table in tables for answer in table.answers.values())
    rows = [row for table in tables for row in table.rows if row.subject in names]
    # Where a suite was run already, it has no more cases that the implementation takes.
    if any(row.conformance.suite != "perf" for row in rows):
        return None
    place = tables[0].place
    command = format_command(format_job(parse(ConformJob, {"device": place.device})), names)
    return NextCommand(kind="check", command=command, machine=place.machine)


def _list_open(table: SummaryTable) -> list[Column]:
    return [column for column, answer in table.answers.items() if answer.more_would_help]


def _make_measuring(table: SummaryTable, columns: Sequence[Column], made: Mapping[str, Run]) -> NextCommand:
    """Return the command that times the open calls of a table again, with those that may be the fastest."""
    answers = [table.answers[column] for column in columns]
    names = dict.fromkeys(name for one in answers for name in (one.name, one.behind) if name)
    names.pop(table.baseline, None)
    runs = [cell.run for row in table.rows for column in columns if (cell := row.cells.get(column))]
    found = _read_fields(made.get(runs[0])) if runs else None
    if found is None:
        found = {"device": table.place.device, "dtype": table.place.dtype}
    lengths = () if found.get("cases") else _list_lengths(columns)
    job = parse(ProfileJob, {**found, "lengths": lengths, "processes": PROCESSES})
    return NextCommand(kind="measure", command=format_command(format_job(job), names), machine=table.place.machine)


def _list_lengths(columns: Iterable[Column]) -> list[Length]:
    pairs = [(column.queries or column.keys, column.keys or column.queries) for column in columns]
    return [pair for pair in pairs if all(pair)]


def _read_fields(run: Run | None) -> dict[str, Any] | None:
    """Return the fields of the job of a run that say what it timed; None if its job does not say it."""
    if run is None:
        return None
    try:
        job = read_job(run)
    except JobError:
        return None
    kept = {name: value for name in KEPT if (value := getattr(job, name, None))}
    words = shlex.split(format_job(ProfileJob(**kept)))
    is_plain = all(word.isprintable() and len(word) <= LONGEST for word in words)
    return kept if isinstance(job, TimedJob) and is_plain else None
