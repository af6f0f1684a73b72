"""Prints and stores which cheats the timing's defences stop, and whether honest oddities are accused."""

import json
from collections.abc import Sequence
from typing import IO, Any

from attnbench.api.progress import show_progress
from attnbench.report.console import Console
from attnbench.report.text_table import TextTable, print_tables
from attnbench.words.findings import describe_reason
from attncheats.catalogue import CHEATS, ODDITIES
from attncheats.cheat import Cheat
from attncheats.outcomes import CheatOutcome, Timed, try_cheats

__all__ = ["score_cheats"]

SCHEMA = 1


def score_cheats(json_file: IO[str] | None) -> int:
    """Time all cheats and honest oddities, and print and store the outcomes.

    Return 1 if a cheat is not stopped or an honest oddity is accused, else 0.
    """
    with show_progress() as progress:
        outcomes = list(try_cheats([*CHEATS.values(), *ODDITIES.values()], progress=progress))
    if json_file:
        json.dump({"schema": SCHEMA, "cheats": [_to_json(one) for one in outcomes]}, json_file, indent=1)
        json_file.write("\n")
    _print_outcomes(outcomes, err=json_file is not None and json_file.name == "-")
    return int(any(_is_wrong(one) for one in outcomes))


def _is_wrong(one: CheatOutcome) -> bool:
    return not one.is_stopped if isinstance(one.tried, Cheat) else one.is_accused


def _print_outcomes(outcomes: Sequence[CheatOutcome], *, err: bool) -> None:
    console = Console.of(err=err)
    cheats = [(one, one.tried) for one in outcomes if isinstance(one.tried, Cheat)]
    oddities = [one for one in outcomes if not isinstance(one.tried, Cheat)]
    rows: list[tuple[str, ...]] = []
    for one, cheat in cheats:
        mark = "" if one.is_stopped else "NOT STOPPED: "
        also = "".join(f", {name}" for name in sorted(cheat.also_by))
        without = "" if one.undefended is None else _format(one.undefended)
        rows.append((cheat.name, f"{cheat.stopped_by}{also}", mark + _format(one.defended), without))
    head = ("cheat", "stopped by", "with all defences", "without it")
    print_tables([TextTable(head=head, rows=tuple(rows))], console)
    for one in oddities:
        if one.is_accused:
            console.print_wrapped(f"ACCUSED: {one.tried.name}: {_format(one.defended)}")
    stopped, succeeding = sum(one.is_stopped for one, _ in cheats), sum(one.succeeds_undefended for one, _ in cheats)
    accused = sum(one.is_accused for one in oddities)
    console.print_wrapped(
        f"{stopped} of {len(cheats)} cheats are stopped; without the defences that they name, {succeeding} look faster "
        f"than they are. {accused} of {len(oddities)} honest oddities are accused.",
    )
    failing = [cheat.name for one, cheat in cheats if not one.succeeds_undefended]
    if failing:
        console.print_wrapped(
            f"Not faster without the defences: {', '.join(failing)}. Cheats that use further cores need idle cores.",
        )


def _format(timed: Timed) -> str:
    if timed.ratio is not None:
        return f"{timed.ratio:.2f} × the reference's time"
    return describe_reason(timed.untimed) if timed.untimed else "not timed"


def _to_json(one: CheatOutcome) -> dict[str, Any]:
    cheat = one.tried if isinstance(one.tried, Cheat) else None
    return {
        "name": one.tried.name,
        "why": one.tried.why,
        "source": cheat.source if cheat else "",
        "stopped_by": cheat.stopped_by if cheat else None,
        "also_by": sorted(cheat.also_by) if cheat else [],
        "stopped": one.is_stopped if cheat else None,
        "accused": one.is_accused,
        "reason": describe_reason(one.defended.untimed) if one.defended.untimed else "",
        "ratio": one.defended.ratio,
        "ratio_without": None if one.undefended is None else one.undefended.ratio,
        "of_honest": one.defended.of_honest,
    }
