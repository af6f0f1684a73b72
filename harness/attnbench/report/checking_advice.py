"""The command that checks more cases of implementations without a verdict on conformance, and writes the page again."""

import shlex
from collections.abc import Collection, Sequence

from attnbench.analysis.coverage import FEWEST_CHECKED, VERDICT_SUITES
from attnbench.analysis.plain_names import format_command
from attnbench.records.run_file import StoredRun
from attnbench.report.advice import NextStep

__all__ = ["RESULTS", "advise_checking", "read_folders"]

# Most runs that the command names.
MOST_RUNS = 4
FOLDERS = ("--results", "--reports")
# Folder of results of a command without --results.
RESULTS = "results"


def advise_checking(names: Collection[str], runs: Sequence[StoredRun]) -> NextStep:
    """Return the command that checks more cases of these implementations.

    If the runs are of one machine and in one folder, the command also writes the report again, from these runs and the
    new one. A run that is not in this folder, as a merged one, is named by its path.
    """
    suite = VERDICT_SUITES[0]
    words = f"To check more cases ({suite} is a larger suite than quick; a verdict needs {FEWEST_CHECKED} cases)"
    given = [dict(read_folders(stored.run.command)) for stored in runs]
    # The folder of each run; the option only where it is not the default.
    results = {own.get("--results", RESULTS) for own in given}
    reports = {own["--reports"] for own in given if "--reports" in own}
    folder = results.pop() if len(results) == 1 and all(map(str.isprintable, results)) else ""
    options = ["--results", folder] if folder and any("--results" in own for own in given) else []
    command = format_command(shlex.join(["attnbench", "conform", "--suite", suite, *options]), names)
    several = len({stored.run.machine.name for stored in runs}) > 1
    named = [_name_run(stored) for stored in runs]
    if several or not folder or len(named) > MOST_RUNS or not all(map(str.isprintable, named)) or "" in named:
        on = " there" if several else ""
        return NextStep(words=f"{words}{on}; then name all run files to attnbench report:", command=command)
    newest = f'"$(ls -t {shlex.quote(folder)}/*/*.jsonl | head -n 1)"'
    if len(reports) == 1 and (page := reports.pop()).isprintable():
        options += ["--reports", page]
    rest = shlex.join(options)
    report = " ".join(filter(None, ("attnbench report", shlex.join(named), newest, rest)))
    return NextStep(words=f"{words} and write this page again with them:", command=f"{command}; {report}")


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
