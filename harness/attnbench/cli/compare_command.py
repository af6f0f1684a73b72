"""``attnbench compare``: what changed between two runs, two implementations, or two source trees of one."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import click
from click.core import ParameterSource
from rich.table import Column, Table
from rich.text import Text

from attnbench.analysis.run_diff import UNDECIDED, WORSE, Change, Verdict, changes, turns_taken
from attnbench.cli.jobs import Choice, asked_effort, profile_into, profile_plans, say_stored, session_for
from attnbench.cli.options import options
from attnbench.cli.recording import INCONCLUSIVE, recording
from attnbench.cli.selection import chosen_implementations
from attnbench.cli.terminal import console
from attnbench.plugins.registry import from_trees, known, names, shown
from attnbench.records.run_file import find, read
from attnbench.records.types import PERF, SCHEMA
from attnbench.runner import Effort

# Relative change of time that counts between two runs, unless told otherwise. Two runs are two moments: identical code
# differed by up to 6 % in ten alternating processes a side, hence no less than 5 %.
THRESHOLD = 0.05
# Sequence lengths at which two implementations are compared, unless told otherwise: one at which a call's own cost
# weighs most, one at which the work does.
LENGTHS = (128, 512)
# How much is measured of two implementations: so that a case takes 15 seconds here where ten processes decide it.
EFFORT = Effort(processes=10, most=30, budget_s=1.0)
# Options that say how implementations are measured.
MEASURING = (
    "lengths", "passes", "device", "dtypes", "processes", "threads", "timeout", "memory_limit", "work_limit", "resume",
    "case_budget",
)  # fmt: skip
WORSENED = 1
# Verdicts that are neither good nor bad.
STYLES = {"same": "dim", "unknown": "yellow", "inconclusive": "yellow", "other": "yellow"}


@click.command("compare")
@click.argument("base", metavar="BASE")
@click.argument("new", metavar="[NEW]", required=False)
@click.option(
    "--base",
    "tree",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another checkout or folder: its version of the implementation is the base.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(min=0, min_open=True),
    default=THRESHOLD,
    show_default=True,
    help="Relative change of time that counts between two runs.",
)
@options("lengths", "passes", "device", "dtype", "processes", "threads", "timeout", "memory_limit", "work_limit")
@options("case_budget", "results", "resume", "json")
def command(base: str, new: str | None, *, tree: Path | None, **given: Any) -> int:
    """What became slower, faster, bigger or wrong from BASE to NEW: two runs, or two implementations.

    Implementations take turns, now and in the same processes; with --base PATH it is one implementation, as PATH has
    it, and as it is found here. Runs are compared by their times' ratios to the reference, each taken in turns with it
    in its own run. Bytes, flop and kernel calls are compared as they are. Exit code 0: nothing became worse;
    1: something did, or a result is gone; 3: nothing in common, or no verdict on time.
    """
    sides = _sides(base, new, tree, given["results"])
    if sides is None:
        assert new is not None
        _refuse(MEASURING, "is for implementations; runs are compared as they are stored")
        return _runs(base, new, given)
    _refuse(("threshold",), "is for runs; what counts between implementations that take turns is fixed")
    return _implementations(*sides, given)


def _sides(base: str, new: str | None, tree: Path | None, results: Path) -> tuple[str, str] | None:
    """Implementations that are to be compared, or None where they are two runs.

    Raises: PluginError, UsageError.
    """
    if tree is not None:
        if new is not None:
            raise click.UsageError(f"--base compares one implementation with itself: leave out {new!r}, or --base")
        return from_trees(base, tree)
    if new is None:
        raise click.UsageError(
            "NEW is missing: name a second run or implementation, or another source tree by --base PATH"
        )
    registered = names()
    ours = {name for name in (base, new) if ":" in name or name.partition(" @ ")[0] in registered}
    if not ours:
        return None
    for other in {base, new} - ours:
        if Path(other).is_file() or any(results.glob(f"*/{other}.jsonl")):
            raise click.UsageError(f"{ours.pop()!r} is an implementation and {other!r} a run: name two of a kind")
        known(other)
    if base == new:
        raise click.UsageError(f"{base!r} is named twice: name two, or another source tree by --base PATH")
    first, second = chosen_implementations([base, new])
    return first, second


def _refuse(parameters: Sequence[str], reason: str) -> None:
    """Refuse options that would have no effect.

    Raises: UsageError.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        typed = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if parameter.name in parameters and typed:
            raise click.UsageError(f"{parameter.opts[0]} {reason}")


def _runs(base: str, new: str, given: dict[str, Any]) -> int:
    before, after = (read(path) for path in find(given["results"], [base, new]))
    found = list(changes(before, after, threshold=given["threshold"]))
    if not given["json_file"]:
        if before.run.machine.name != after.run.machine.name:
            click.echo(
                f"made on {before.run.machine.name} and on {after.run.machine.name}: times and bytes are not compared",
                err=True,
            )
        if before.run.suite_digest != after.run.suite_digest:
            click.echo("the runs hold other cases: only those that both have are compared", err=True)
    _tell(found, given["json_file"], quiet=("same", "unknown"))
    return _exit_code(found, undecided=UNDECIDED - {"unknown"})


def _implementations(base: str, new: str, given: dict[str, Any]) -> int:
    """Measure two implementations in turns."""
    sides = chosen_implementations([base, new])
    choice = Choice.of(given)
    with session_for(given) as session:
        # What cannot be loaded, or not beside the other one, is told before anything is measured.
        session.supervise_together(sides).close()
        computed = [session.declared[name]["operator"] for name in sides]
        if len(set(computed)) > 1:
            told = " and ".join(f"{shown(name)} computes {own}" for name, own in zip(sides, computed, strict=True))
            raise click.UsageError(f"BASE and NEW must compute the same, got two operators: {told}")
        plans = profile_plans(session, choice, lengths=given["lengths"] or LENGTHS, passes=given["passes"])
        with recording(
            session, results=given["results"], suite=PERF, cases=[plan.case for plan in plans],
            implementations=sides, resume=given["resume"],
        ) as recorded:  # fmt: skip
            effort = asked_effort(EFFORT, given)
            profile_into(recorded, session, sides, plans, effort=effort, baseline=base)
    found = list(turns_taken(list(recorded.results.values()), base=shown(base), new=shown(new)))
    if not given["json_file"]:
        click.echo(f"{shown(new)} against {shown(base)}, in turns in the same processes")
    _tell(found, given["json_file"], quiet=())
    say_stored(recorded)
    return _exit_code(found, undecided=UNDECIDED)


def _tell(found: Sequence[Change], json_file: IO[str] | None, *, quiet: Collection[Verdict]) -> None:
    """Say what changed; every verdict on time, unless it is among the quiet ones."""
    if json_file:
        _write_json(found, json_file)
        return
    # The end of a case's id says which pass it is.
    case = Column("case", overflow="fold")
    table = Table("verdict", "implementation", "aspect", "from → to", case, box=None, pad_edge=False)
    for change in found:
        if change.verdict in quiet or (change.verdict == "same" and change.aspect != "time"):
            continue
        style = "red" if change.verdict in WORSE else STYLES.get(change.verdict, "green")
        verdict = Text(change.verdict, style=style)
        table.add_row(verdict, change.implementation, change.aspect, Text(change.told), Text(change.case))
    if table.row_count:
        console().print(table)
    counts = Counter(change.verdict for change in found)
    click.echo(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) or "nothing in common")


def _exit_code(found: Sequence[Change], *, undecided: frozenset[Verdict]) -> int:
    verdicts = {change.verdict for change in found}
    if verdicts & WORSE:
        return WORSENED
    return INCONCLUSIVE if not found or verdicts & undecided else 0


def _write_json(found: Sequence[Change], file: IO[str]) -> None:
    json.dump({"schema": SCHEMA, "changes": [asdict(change) for change in found]}, file, indent=1)
    file.write("\n")
