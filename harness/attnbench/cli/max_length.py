"""``attnbench profile --frontier``: the longest sequence that each implementation gets through."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from attnbench.analysis.max_length import FITS, HEAD, frontiers, row
from attnbench.cli.jobs import Choice, profile_plans, say_stored, session_for
from attnbench.cli.progress import progress
from attnbench.cli.recording import FAILED, INCONCLUSIVE, recording, write_json
from attnbench.cli.selection import chosen_implementations, operators_of, taking_part
from attnbench.cli.terminal import console
from attnbench.plugins.registry import shown
from attnbench.records.types import FAILURES, FRONTIER, Result
from attnbench.runner.max_length import SHORTEST, WORKER, find_frontiers

__all__ = ["print_frontiers", "search_frontiers"]

# Columns of numbers.
NUMBERS = frozenset({"longest", "s a call", "peak MiB"})
# Options of a profile that say nothing of a frontier, by their names among the parameters.
UNUSED = {
    "lengths": "--lengths", "patterns": "--case", "processes": "--processes", "case_budget": "--case-budget",
}  # fmt: skip


def search_frontiers(implementations: Sequence[str], given: dict[str, Any]) -> int:
    """Find, store and print; the exit code."""
    if unused := [option for name, option in UNUSED.items() if given[name]]:
        raise click.UsageError(f"--frontier finds the lengths itself and times no processes: leave out {unused[0]}")
    chosen = chosen_implementations(implementations)
    choice = Choice.of(given)
    session = session_for(given)
    session.worker_module = WORKER
    # One limit for all that are compared, whatever is free as each one's worker starts.
    session.limits = replace(session.limits, memory_bytes=session.limits.memory_limit_bytes())
    with session:
        chosen = taking_part(session, chosen, asked=bool(implementations), operators=given["operators"])
        operators = operators_of(session, chosen)
        shortest = profile_plans(session, choice, operators, lengths=(SHORTEST,), passes=given["passes"])
        with recording(
            session, results=given["results"], suite=FRONTIER, cases=[plan.case for plan in shortest],
            implementations=chosen, resume=given["resume"],
        ) as recorded, progress() as steps:  # fmt: skip
            for result in find_frontiers(
                session, chosen, shortest, run=recorded.run.id, steps=steps, done=recorded.results
            ):
                recorded.add(result)
    if given["json_file"]:
        write_json(recorded, given["json_file"])
    to_stderr = given["json_file"] is not None and given["json_file"].name == "-"
    print_frontiers(recorded.told(), err=to_stderr)
    say_stored(recorded)
    return _exit_code(recorded.told(), [shown(name) for name in implementations])


def print_frontiers(results: Iterable[Result], *, err: bool = False) -> None:
    """One line for each implementation, pass and dtype: the longest length, what it took, and what the next one met."""
    table = Table(box=None, pad_edge=False)
    for name in HEAD:
        table.add_column(name, justify="right" if name in NUMBERS else "left")
    for frontier in frontiers(results):
        table.add_row(*map(Text, row(frontier)))
    console(err=err).print(table)


def _exit_code(results: Iterable[Result], asked: Sequence[str]) -> int:
    """0 if something fits of each that was asked for; 1 where the shortest length does not conform; else 3."""
    fits: set[str] = set()
    for result in results:
        for finding in result.findings:
            if finding.check == FITS and finding.status == "passed":
                fits.add(result.implementation)
            elif finding.check != FITS and finding.status in FAILURES:
                return FAILED
    return 0 if fits.issuperset(asked) else INCONCLUSIVE
