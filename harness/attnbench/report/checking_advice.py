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
    new one.
    """
    suite = VERDICT_SUITES[0]
    words = f"To check more cases ({suite} is a larger suite than quick; a verdict needs {FEWEST_CHECKED} cases)"
    given = {read_folders(stored.run.command) for stored in runs}
    folders = [pair for pair in (given.pop() if len(given) == 1 else ()) if pair[1].isprintable()]
    options = shlex.join([word for pair in folders if pair[0] == "--results" for word in pair])
    command = format_command(f"attnbench conform --suite {suite} {options}".rstrip(), names)
    several = len({stored.run.machine.name for stored in runs}) > 1
    ids = [stored.run.id for stored in runs]
    if several or len(ids) > MOST_RUNS or not all(map(str.isprintable, ids)):
        on = " on each machine" if several else ""
        return NextStep(words=f"{words}{on}; then name all run files to attnbench report:", command=command)
    results = dict(folders).get("--results", RESULTS)
    newest = f'"$(ls -t {shlex.quote(results)}/*/*.jsonl | head -n 1)"'
    rest = shlex.join(word for pair in folders for word in pair)
    report = " ".join(filter(None, ("attnbench report", shlex.join(ids), newest, rest)))
    return NextStep(words=f"{words} and write this page again with them:", command=f"{command}; {report}")


def read_folders(command: str) -> tuple[tuple[str, str], ...]:
    """Return the options of a stored command that name folders, with their values; empty if it cannot be read."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ()
    found = []
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        value = value if equals else next(iter(words[place + 1 :]), "")
        if option in FOLDERS and value:
            found.append((option, value))
    return tuple(found)
