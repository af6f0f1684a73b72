"""The one command that would decide most of what a summary leaves open."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attnbench.analysis.plain_names import format_command
from attnbench.analysis.summary import Column, Summary, SummaryTable
from attnbench.records.run_file import StoredRun

__all__ = ["NextCommand", "find_next_command"]

# ``finish``: a run was not finished. ``check``: what to use is not known to conform, because only the checks before
# timing ran. ``measure``: more processes would lower the bounds of answers.
Kind = Literal["finish", "check", "measure"]
# Processes of the command that measures again: three times as many as a profile begins with.
PROCESSES = 30
# Commands whose options say what to time. ``KEPT``: their options that a command repeats; each has a value. ``FLAGS``:
# their options without a value.
TIMING = ("run", "profile", "compare")
KEPT = (
    "--operator", "--passes", "--device", "--dtype", "--case", "--batch", "--heads", "--head-dim", "--width",
    "--kv-heads", "--mask", "--padding", "--like", "--threads", "--memory-limit", "--work-limit", "--results",
)  # fmt: skip
FLAGS = ("--frontier", "--no-cache", "--no-completion")
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
    commands = {stored.run.id: stored.run.command for stored in runs}
    tables = [table for table in summary.tables if table.answers]
    if unchecked := [table for table in tables if not table.conforming]:
        where = (unchecked[0].place.machine, unchecked[0].place.device)
        return _make_check([one for one in unchecked if (one.place.machine, one.place.device) == where])
    open_ = {id(table): _list_open(table) for table in tables}
    most = max(tables, key=lambda table: len(open_[id(table)]), default=None)
    return _make_measuring(most, open_[id(most)], commands) if most and open_[id(most)] else None


def _make_check(tables: Sequence[SummaryTable]) -> NextCommand | None:
    """Return the command that checks what to use by these tables, which are of one machine and device."""
    names = dict.fromkeys(answer.name for table in tables for answer in table.answers.values())
    rows = [row for table in tables for row in table.rows if row.subject in names]
    # Where a suite was run already, it has no more cases that the implementation takes.
    if any(row.conformance.suite != "perf" for row in rows):
        return None
    place = tables[0].place
    device = ["--device", place.device] if place.device != "cpu" else []
    command = format_command(shlex.join(["attnbench", "conform", *device]), names)
    return NextCommand(kind="check", command=command, machine=place.machine)


def _list_open(table: SummaryTable) -> list[Column]:
    return [column for column, answer in table.answers.items() if answer.more_would_help]


def _make_measuring(table: SummaryTable, columns: Sequence[Column], commands: Mapping[str, str]) -> NextCommand:
    """Return the command that times the open calls of a table again, with those that may be the fastest."""
    answers = [table.answers[column] for column in columns]
    names = dict.fromkeys(name for one in answers for name in (one.name, one.behind) if name)
    names.pop(table.baseline, None)
    runs = [cell.run for row in table.rows for column in columns if (cell := row.cells.get(column))]
    options = _read_options(commands.get(runs[0], "")) if runs else None
    if options is None:
        options = ("--device", table.place.device, "--dtype", table.place.dtype)
    ordered = sorted(columns, key=lambda column: (column.keys, column.queries))
    lengths = () if "--case" in options else ("--lengths", ",".join(dict.fromkeys(one.length for one in ordered)))
    words = ["attnbench", "profile", "--processes", str(PROCESSES), *lengths, *options]
    return NextCommand(kind="measure", command=format_command(shlex.join(words), names), machine=table.place.machine)


def _read_options(command: str) -> tuple[str, ...] | None:
    """Return the options of a stored command that say what it timed; None if its options do not say it."""
    try:
        _, name, *words = shlex.split(command)
    except ValueError:
        return None
    if name not in TIMING:
        return None
    kept, rest = [], iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if not option.startswith("--") or option in FLAGS:
            continue
        value = value if equals else next(rest, "")
        kept += [option, value] if option in KEPT else []
    return tuple(kept) if all(word.isprintable() and len(word) <= LONGEST for word in kept) else None
