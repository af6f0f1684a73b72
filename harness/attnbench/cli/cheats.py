"""``attnbench conform --cheats``: which cheats the timing's defences stop, and whether honest oddities are accused."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.table import Table

from attnbench.api.progress import show_progress
from attnbench.cli.terminal import make_console
from attnbench.runner.cheating import CheatOutcome, Timed, list_cheats, try_cheats
from attnbench.words.findings import describe_reason

__all__ = ["time_cheats"]

SCHEMA = 1
# Options of ``attnbench conform`` that may be given with --cheats, by parameter name.
USED = frozenset({"cheats", "json_file"})


def time_cheats(implementations: Sequence[str], given: Mapping[str, Any]) -> int:
    """Time all cheats and honest oddities, and print and store the outcomes.

    Return 1 if a cheat is not stopped or an honest oddity is accused, else 0.
    """
    if implementations:
        raise click.UsageError(f"--cheats times the shipped cheats: leave out {' '.join(implementations)}")
    source = click.get_current_context().get_parameter_source
    asked = [name for name in given if name not in USED and source(name) == click.core.ParameterSource.COMMANDLINE]
    if asked:
        options = {one.name: one.opts[0] for one in click.get_current_context().command.params}
        raise click.UsageError(f"--cheats: leave out {', '.join(options[name] for name in asked)}")
    with show_progress() as progress:
        outcomes = list(try_cheats(list_cheats(), progress=progress))
    if given["json_file"]:
        json.dump({"schema": SCHEMA, "cheats": [_to_json(one) for one in outcomes]}, given["json_file"], indent=1)
        given["json_file"].write("\n")
    _print_outcomes(outcomes, err=given["json_file"] is not None and given["json_file"].name == "-")
    return int(any(_is_wrong(one) for one in outcomes))


def _is_wrong(one: CheatOutcome) -> bool:
    return one.is_accused if one.listed.stopped_by is None else not one.is_stopped


def _print_outcomes(outcomes: Sequence[CheatOutcome], *, err: bool) -> None:
    console = make_console(err=err)
    cheats = [one for one in outcomes if one.listed.stopped_by is not None]
    oddities = [one for one in outcomes if one.listed.stopped_by is None]
    table = Table("cheat", "stopped by", "with all defences", "without it", box=None, pad_edge=False)
    for one in cheats:
        mark = "" if one.is_stopped else "NOT STOPPED: "
        also = "".join(f", {name}" for name in sorted(one.listed.also_by))
        without = "" if one.undefended is None else _format(one.undefended)
        table.add_row(one.listed.name, f"{one.listed.stopped_by}{also}", mark + _format(one.defended), without)
    console.print(table)
    for one in oddities:
        if one.is_accused:
            console.print(f"ACCUSED: {one.listed.name}: {_format(one.defended)}", markup=False)
    stopped, succeeding = sum(one.is_stopped for one in cheats), sum(one.succeeds_undefended for one in cheats)
    accused = sum(one.is_accused for one in oddities)
    console.print(
        f"{stopped} of {len(cheats)} cheats are stopped; without the defences that they name, {succeeding} look faster "
        f"than they are. {accused} of {len(oddities)} honest oddities are accused.",
        markup=False,
    )
    failing = [one.listed.name for one in cheats if not one.succeeds_undefended]
    if failing:
        console.print(
            f"Not faster without the defences: {', '.join(failing)}. Cheats that use further cores need idle cores.",
            markup=False,
        )


def _format(timed: Timed) -> str:
    if timed.ratio is not None:
        return f"{timed.ratio:.2f} × the reference's time"
    return describe_reason(timed.untimed) if timed.untimed else "not timed"


def _to_json(one: CheatOutcome) -> dict[str, Any]:
    return {
        "name": one.listed.name,
        "why": one.listed.why,
        "source": one.listed.source,
        "stopped_by": one.listed.stopped_by,
        "also_by": sorted(one.listed.also_by),
        "stopped": None if one.listed.stopped_by is None else one.is_stopped,
        "accused": one.is_accused,
        "reason": describe_reason(one.defended.untimed) if one.defended.untimed else "",
        "ratio": one.defended.ratio,
        "ratio_without": None if one.undefended is None else one.undefended.ratio,
        "honest_ratio": one.honest_ratio,
    }
