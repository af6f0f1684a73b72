"""Prints what to use, and the commands that lead on from a report."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from attnbench.api.command_line import name_folders
from attnbench.records.environment import describe_machine
from attnbench.records.run_file import StoredRun
from attnbench.report.choice_lines import format_choices
from attnbench.report.content import Content

__all__ = ["print_choices"]


def print_choices(content: Content, reports: Path, *, err: bool = False) -> None:
    """Print what to use; the commands name the folders of the runs and of this report, if they are to run here."""
    change = partial(name_folders, folders=_find_folders(content.runs, reports))
    for line in format_choices(content.decisions, content.runs, change_command=change):
        click.echo(line, err=err)


def _find_folders(runs: Sequence[StoredRun], reports: Path) -> dict[str, Path]:
    """Return the folders of commands; none if a run is of another machine, or not where a command stores its runs."""
    places = {(stored.path.parent.parent, stored.path.absolute().parent.name) for stored in runs}
    if len(places) != 1:
        return {}
    ((results, machine),) = places
    # The description of this machine starts a program, so it comes last.
    is_here = all(stored.run.machine.name == machine for stored in runs) and machine == describe_machine().name
    return {"--results": results, "--reports": reports} if is_here else {}
