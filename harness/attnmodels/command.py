"""``attnbench model``: check attention functions at each call inside a model."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from attnbench.cli.options import options
from attnbench.plugins.registry import PluginError
from attnbench.processes.errors import ChildDied, ChildTimeout
from attnbench.processes.request import Fault, Request
from attnbench.processes.rpc import Child
from attnbench.report.console import Console
from attnbench.report.text_table import TextTable, print_tables
from attnbench.words.findings import describe_fact
from attnmodels.facts import MODEL, Cell, Inspection, Raised
from attnmodels.requests import CheckAttention, CheckedAttention, InspectModel
from attnmodels.texts import LEGEND, describe_deviations, describe_inspection, describe_left_out, make_head, make_row

__all__ = ["command"]

DEFAULTS = ("eager", "sdpa")
DEFAULTS_OF_LIBRARIES = {"diffusers": ("native",), "timm": ("fused",)}
# Exit code where an attention function that was named is refused in every situation.
NOTHING_CHECKED = 3
# Time limit of an attention function in all situations, in seconds; a small model takes one or two.
LIMIT_S = 900.0


@click.command("model")
@click.argument("source")
@click.option(
    "--attention", "attentions", multiple=True,
    help="Attention function: a name of transformers, an implementation, or path/to/file.py:function.  "
    "[default: eager and sdpa]",
)  # fmt: skip
@click.option(
    "--small/--full-size", default=None, help="Make the configuration small.  [default: that of a class, not of a file]"
)
@options("json")
def command(source: str, attentions: Sequence[str], *, small: bool | None, json_file: IO[str] | None) -> int:
    """Check attention functions at each call inside a model of transformers, layer by layer.

    SOURCE is transformers:CLASS such as transformers:Gemma2Config, the folder or JSON file of a configuration, or
    path/to/file.py:make_model. Weights are random; nothing is downloaded. Exit code 0: nothing deviates; 1: a call
    deviates or fails; 3: a function that you named is refused everywhere.
    """
    names = tuple(dict.fromkeys(attentions or DEFAULTS_OF_LIBRARIES.get(source.partition(":")[0], DEFAULTS)))
    with tempfile.TemporaryDirectory(prefix="attnbench-") as folder, _Checker(source, small, Path(folder)) as checker:
        inspection = checker.inspect()
        cells = {name: checker.check(name, inspection) for name in names}
    cells = {MODEL: inspection.cells} | cells
    if json_file:
        found = {"source": source, "inspection": inspection, "cells": [one for own in cells.values() for one in own]}
        json_file.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    _print(inspection, cells, err=json_file is not None and json_file.name == "-")
    statuses = {name: {one.status for one in own} for name, own in cells.items()}
    if any(found & {"deviates", "failed"} for found in statuses.values()):
        return 1
    return NOTHING_CHECKED if any(statuses[name] == {"refused"} for name in attentions) else 0


@dataclass(slots=True)
class _Checker:
    """Asks a process that runs the model; the process is started again after an attention function killed it."""

    source: str
    small: bool | None
    folder: Path
    child: Child | None = field(init=False, default=None)

    def __enter__(self) -> "_Checker":
        return self

    def __exit__(self, *_: object) -> None:
        if self.child is not None:
            self.child.__exit__(None, None, None)

    def inspect(self) -> Inspection:
        """Return what the model is.

        Raises: PluginError where it cannot be checked.
        """
        try:
            found: Inspection = self._ask(InspectModel(source=self.source, small=self.small))
        except (ChildDied, ChildTimeout) as error:
            raise PluginError(f"the process of the model ended: {describe_fact(error.fact)}") from None
        return found

    def check(self, name: str, inspection: Inspection) -> tuple[Cell, ...]:
        """Return what was found of an attention function in each situation."""
        try:
            found: CheckedAttention = self._ask(CheckAttention(source=self.source, small=self.small, attention=name))
        except (ChildDied, ChildTimeout) as error:
            fact = Raised(kind="ended", message=describe_fact(error.fact))
            return tuple(
                Cell(attention=name, situation=one, status="failed", calls=0, layers=("",), facts=(fact,))
                for one in inspection.situations
            )
        return found.cells

    def _ask(self, request: Request[Any]) -> Any:
        if self.child is None:
            self.child = Child("attnmodels.process", log=self.folder / "model.log")
        try:
            answer = self.child.ask(request, timeout_s=LIMIT_S)
        except (ChildDied, ChildTimeout):
            self.child = None
            raise
        if isinstance(answer, Fault):
            raise PluginError(answer.reason)
        return answer


def _print(inspection: Inspection, cells: dict[str, tuple[Cell, ...]], *, err: bool) -> None:
    console = Console.of(err=err)
    for sentence in describe_inspection(inspection):
        console.print_wrapped(sentence)
    of_situation = zip(inspection.situations, zip(*cells.values(), strict=True), strict=True)
    names = [name for name in cells if name != MODEL]
    rows = tuple(make_row(situation, own) for situation, own in of_situation)
    print_tables([TextTable(head=make_head(names), rows=rows)], console)
    if inspection.left_out:
        console.print_wrapped(f"Left out: {describe_left_out(inspection)}.", "dim")
    console.print_wrapped(LEGEND, "dim")
    for sentence in describe_deviations(one for own in cells.values() for one in own):
        console.print_wrapped(sentence)
