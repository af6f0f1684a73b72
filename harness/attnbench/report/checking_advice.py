"""The command that checks more cases of implementations without a verdict on conformance, and writes the page again."""

import shlex
from collections.abc import Collection, Sequence

from attnbench.analysis.coverage import FEWEST_CHECKED
from attnbench.analysis.plain_names import format_command
from attnbench.records.run_file import StoredRun
from attnbench.report.next_step import NextStep, add_report, find_results, read_folders

__all__ = ["advise_checking"]

LARGE = ("core", "full")


def advise_checking(names: Collection[str], runs: Sequence[StoredRun], device: str = "cpu") -> NextStep | None:
    """Return the command that checks more cases of these implementations, and writes the report again if it can.

    Return None if a run is of a large suite, because then no further suite checks more cases.
    """
    if any(stored.run.suite in LARGE for stored in runs):
        return None
    suite = LARGE[0]
    words = f"To check more cases ({suite} is a larger suite than quick; a verdict needs {FEWEST_CHECKED} cases)"
    folder = find_results(runs)
    # The option only where the folder is not the default.
    named = any("--results" in dict(read_folders(stored.run.command)) for stored in runs)
    options = ["--results", folder] if folder and named else []
    options += ["--device", device] if device != "cpu" else []
    command = format_command(shlex.join(["attnbench", "conform", "--suite", suite, *options]), names)
    whole = add_report(command, runs)
    if whole == command:
        there = " there" if len({stored.run.machine.name for stored in runs}) > 1 else ""
        return NextStep(words=f"{words}{there}; then name all run files to attnbench report:", command=command)
    return NextStep(words=f"{words} and write this page again with them:", command=whole)
