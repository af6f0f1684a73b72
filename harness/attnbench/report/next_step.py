"""What to do next: a command that adds what is missing from a report, and then writes the report again."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.records.run_file import StoredRun

__all__ = ["RESULTS", "NextStep", "add_report", "find_results", "read_folders"]

# Most runs that the command of a report names.
MOST_RUNS = 4
FOLDERS = ("--results", "--reports")
# Folder of results of a command without --results.
RESULTS = "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """A command that adds what is missing, with what to know before it is run."""

    words: str
    command: str


def add_report(command: str, runs: Sequence[StoredRun]) -> str:
    """Return a command that makes a run, followed by the command that reports on these runs and on all newer ones.

    Return the command alone if the runs are of several machines, not in one folder, or too many. A run that is not in
    this folder, as a merged one, is named by its path.
    """
    folder = find_results(runs)
    named = [_name_run(stored) for stored in sorted(runs, key=lambda stored: stored.run.id)]
    several = len({stored.run.machine.name for stored in runs}) > 1
    if several or not folder or len(named) > MOST_RUNS or not all(map(str.isprintable, named)) or "" in named:
        return command
    given = [dict(read_folders(stored.run.command)) for stored in runs]
    options = ["--results", folder] if any("--results" in own for own in given) else []
    reports = {own["--reports"] for own in given if "--reports" in own}
    if len(reports) == 1 and (page := reports.pop()).isprintable():
        options += ["--reports", page]
    return f"{command}; {shlex.join(['attnbench', 'report', *named[:-1], '--since', named[-1], *options])}"


def find_results(runs: Sequence[StoredRun]) -> str:
    """Return the folder in which all runs are; empty if they are not in one, or if its name cannot be printed."""
    folders = {dict(read_folders(stored.run.command)).get("--results", RESULTS) for stored in runs}
    return folders.pop() if len(folders) == 1 and all(map(str.isprintable, folders)) else ""


def _name_run(stored: StoredRun) -> str:
    """Return how ``attnbench report`` finds a run; empty for a path whose folders could reveal a user name."""
    if stored.run.parts:
        return "" if stored.path.is_absolute() or ".." in stored.path.parts else str(stored.path)
    return stored.run.id


def read_folders(command: str) -> tuple[tuple[str, str], ...]:
    """Return the options of a stored command that name folders, with their values; empty if it cannot be read.

    The folder of a sweep has no results of other commands.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ()
    if words[1:2] == ["sweep"]:
        return ()
    found = []
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        value = value if equals else next(iter(words[place + 1 :]), "")
        if option in FOLDERS and value:
            found.append((option, value))
    return tuple(found)
