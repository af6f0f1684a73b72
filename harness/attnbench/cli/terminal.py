"""What a command prints of its runs at the end: the summary, the failures, and the one command that leads on."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import click

from attnbench.analysis.next_command import find_next_command
from attnbench.analysis.summarize import summarize
from attnbench.analysis.summary import Summary
from attnbench.api.recording import Recording
from attnbench.jobs.command_lines import name_folders
from attnbench.records.environment import describe_machine
from attnbench.records.run_file import StoredRun, read_run
from attnbench.report.console import Console
from attnbench.report.terminal import print_failures, print_next_command, print_summary

__all__ = ["print_notes", "print_outcome", "read_made"]


def read_made(made: Iterable[Recording]) -> tuple[list[StoredRun], Summary]:
    """Return the runs that a command has just made, and their summary."""
    runs = [read_run(one.file.path) for one in made]
    return runs, summarize(runs)


def print_outcome(
    summary: Summary, runs: Sequence[StoredRun], *, reports: Path | None = None, err: bool = False
) -> None:
    """Print the summary of these runs, the failures, and the one command that would decide most.

    ``reports`` is the folder of their report.
    """
    out = Console.of(err=err)
    print_summary(summary, out)
    print_failures(summary, out)
    if found := find_next_command(summary, runs):
        change = partial(name_folders, folders=_find_folders(runs, reports))
        print_next_command(found, change, out)


def print_notes(lines: Sequence[str], *, err: bool = False) -> None:
    """Print further lines, one fact each."""
    for line in lines:
        click.echo(line, err=err)


def _find_folders(runs: Sequence[StoredRun], reports: Path | None) -> dict[str, Path]:
    """Return the folders of commands; none if a run is of another machine, or not where a command stores its runs."""
    places = {(stored.path.parent.parent, stored.path.absolute().parent.name) for stored in runs}
    if len(places) != 1:
        return {}
    ((results, machine),) = places
    # The description of this machine starts a program, so it comes last.
    is_here = all(stored.run.machine.name == machine for stored in runs) and machine == describe_machine().name
    return {"--results": results} | ({"--reports": reports} if reports else {}) if is_here else {}
