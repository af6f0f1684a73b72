"""``attnbench model``: check and time attention functions inside models."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click

from attnbench.cli.options import options
from attnbench.jobs.fields import FIELDS, parse_fields
from attnbench.plugins.file_objects import complete_name
from attnbench.plugins.registry import PluginError
from attnbench.report.console import Console
from attnbench.report.plugin_sections import place_section
from attnbench.report.text_table import TextTable, print_tables
from attnmodels.documents import encode_sources, summarize, write_documents
from attnmodels.facts import CheckedSource
from attnmodels.inquiry import Inquiry, Timed
from attnmodels.section import NAME, make_section
from attnmodels.texts import (
    LEGEND,
    TIME_HEAD,
    describe_inspection,
    describe_timing,
    format_time,
)

__all__ = ["command"]

# Exit code where an attention function that was named is refused in every situation, or there are no times.
UNDONE = 3
# Default number of timing processes: ten are enough for a speed verdict. Default time of each, in seconds: enough for
# some dozen calls of a sentence encoder.
PROCESSES, BUDGET_S = 10, 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is asked about each model."""

    attentions: tuple[str, ...]
    small: bool | None
    timed: Timed | None


@click.command("model")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option(
    "--attention", "attentions", multiple=True,
    help="Attention function: a name of the model's library, an implementation, or path/to/file.py:function.  "
    "[default: eager and sdpa]",
)  # fmt: skip
@click.option(
    "--small/--full-size", default=None, help="Make the configuration small.  [default: that of a class, not of a file]"
)
@click.option("--time", "is_timed", is_flag=True, help="Time the whole model with each function that does not deviate.")
@click.option("--batch", type=click.IntRange(min=1), default=16, show_default=True, help="--time: sequences.")
@click.option(
    "--length", type=click.IntRange(min=4), default=128, show_default=True,
    help="--time: tokens of the longest sequence; half of all tokens are padding.",
)  # fmt: skip
@click.option("--budget", "budget_s", metavar="SECONDS", help=f"--time: time of each process, such as {BUDGET_S:g}s.")
@options("processes", "threads")
@click.option(
    "--reports", type=click.Path(file_okay=False, path_type=Path),
    help="Folder for models.json, models.md and models.csv, which are replaced; a report in it gets a section.",
)  # fmt: skip
@options("json")
def command(
    sources: Sequence[str],
    attentions: tuple[str, ...],
    *,
    small: bool | None,
    is_timed: bool,
    batch: int,
    length: int,
    reports: Path | None,
    json_file: IO[str] | None,
    **raw: Any,
) -> int:
    """Check attention functions inside models: at each call, layer by layer, and end to end.

    SOURCE is transformers:CLASS such as transformers:Gemma2Config, the folder or JSON file of a configuration, or
    path/to/file.py:make_model. Weights are random; nothing is downloaded. Exit code 0: nothing deviates; 1: a call, a
    model or its output deviates or fails; 3: a function that you named is refused everywhere, or cannot be timed.
    """
    effort = parse_fields({name: FIELDS[name] for name in raw}, raw)
    timed = Timed(
        batch=batch, length=length, processes=effort.get("processes", PROCESSES),
        budget_s=effort.get("budget_s", BUDGET_S), threads=effort.get("threads"),
    )  # fmt: skip
    attentions = tuple(dict.fromkeys(map(complete_name, attentions)))
    asked = _Asked(attentions=attentions, small=small, timed=timed if is_timed else None)
    console = Console.of(err=json_file is not None and json_file.name == "-")
    found: list[CheckedSource] = []
    for source in sources:
        try:
            found.append(_check(source, asked))
        except PluginError as error:
            raise PluginError(f"{source}: {error}" if len(sources) > 1 else str(error)) from error
        _print(found[-1], console)
        # After each model, so that an interruption loses none.
        if reports:
            write_documents(reports, found)
    console.print_wrapped(LEGEND, "dim")
    if reports:
        place_section(reports, NAME, make_section(None, reports))
    if json_file:
        json_file.write(encode_sources(found))
    if any(cell.status in ("deviates", "failed") for one in found for cell in one.cells):
        return 1
    undone = any(one.untimed or any(map(one.is_refused, attentions)) for one in found)
    return UNDONE if undone else 0


def _check(source: str, asked: _Asked) -> CheckedSource:
    with tempfile.TemporaryDirectory(prefix="attnbench-") as folder:
        inquiry = Inquiry(source, asked.small, Path(folder) / "model.log")
        with inquiry:
            found = inquiry.check(asked.attentions)
        return inquiry.time(found, asked.timed) if asked.timed else found


def _print(found: CheckedSource, console: Console) -> None:
    for sentence in describe_inspection(found.inspection):
        console.print_wrapped(sentence)
    summary = summarize([found])
    marks = zip(summary.situations, *(row.words for row in summary.rows), strict=True)
    print_tables([TextTable(head=("situation", *(row.attention for row in summary.rows)), rows=tuple(marks))], console)
    for _, left_out in summary.left_out:
        console.print_wrapped(f"Left out: {left_out}.", "dim")
    for _, sentence in summary.deviations:
        console.print_wrapped(sentence)
    if found.times:
        print_tables([TextTable(head=TIME_HEAD, rows=tuple(map(format_time, found.times)))], console)
        console.print_wrapped(describe_timing(found), "dim")
    if found.untimed:
        console.print_wrapped(f"Not timed: {found.untimed}.")
