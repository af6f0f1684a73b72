"""``attnbench drop-in``: implementations in the place of a real model's own attention."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import click
import msgspec
from rich.table import Table
from rich.text import Text

from attnbench.cli.options import FOLDER, Seconds, options
from attnbench.cli.progress import progress
from attnbench.cli.recording import FAILED, INCONCLUSIVE
from attnbench.cli.selection import chosen_implementations, loadable
from attnbench.cli.terminal import console
from attnbench.integrations.drop_in import WORKER, Asked, Row, drop_in
from attnbench.records.types import SCHEMA
from attnbench.runner import Limits, Session

MODELS = ("encoder", "transformers")
# What the layers of both call.
OPERATOR = "multihead"
# A batch of sentences as people embed them: 16 of up to 128 tokens.
BATCH, LENGTH = 16, 128
# Fresh processes, enough for a verdict, and the time of each in seconds, in which a model is called some dozen times.
PROCESSES, BUDGET_S = 10, 6.0
COLUMNS = ("model", "implementation", "largest difference", "cosine", "error / allowed", "time ratio", "state")
LEGEND = (
    "difference and cosine: of embeddings, against the original's; error: against the model in float64, as a share of "
    "the budget; ratio: time of the whole model over the original's, in turns, with its interval"
)


@click.command("drop-in")
@click.argument("implementations", nargs=-1)
@click.option(
    "--model",
    "models",
    type=click.Choice(MODELS),
    multiple=True,
    help="Model to swap the attention of; both, where both are there, if not given.",
)
@click.option("--batch", type=click.IntRange(min=1), default=BATCH, show_default=True, help="Sentences.")
@click.option(
    "--length",
    type=click.IntRange(min=4, max=512),
    default=LENGTH,
    show_default=True,
    help="Tokens of the longest sentence; half of all tokens are padding.",
)
@click.option(
    "--budget", type=Seconds(), default=BUDGET_S, show_default=True, help="Time of each timing process, such as 6s."
)
@click.option("--reports", type=FOLDER, help="Folder for drop_in.csv and drop_in.md.")
@options("processes", "threads", "timeout", "memory_limit", "work_limit", "json")
def command(
    implementations: tuple[str, ...], *, models: tuple[str, ...], reports: Path | None, json_file: Any, **given: Any
) -> int:
    """Swap implementations into a real sentence encoder: its embeddings and its time, against the original's.

    Each IMPLEMENTATION is a registered name, package.module:attribute or path/to/file.py:attribute; all registered ones
    of multi-head attention if none is named. The models are all-MiniLM-L6-v2 as nn.TransformerEncoderLayer, whose
    self_attn is exchanged, and as Hugging Face's BertModel, whose attention function is. Exit code 0: every
    implementation that takes the model's layers gives its embeddings within the error budget; 1: one does not; 3: none
    takes them.
    """
    limits = Limits(
        timeout_s=given["timeout"],
        memory_bytes=given["memory_limit"],
        work_s=given["work_limit"] or Limits().work_s,
        threads=given["threads"],
    )
    asked = Asked(
        batch=given["batch"],
        length=given["length"],
        processes=given["processes"] or PROCESSES,
        budget_s=given["budget"],
    )
    with Session(limits=limits, worker_module=WORKER) as session:
        there = _present(session, models)
        names = _fitting(session, implementations)
        rows: list[Row] = []
        try:
            with progress() as steps:
                rows.extend(drop_in(session, names, there, asked, steps=steps))
        finally:
            # Models that were done are told, whatever ended the others; without any, older files stay as they are.
            if rows:
                _write(rows, reports, json_file, asked)
                _print(rows, err=json_file is not None and json_file.name == "-")
    compared = [row for row in rows if row.cosine is not None]
    if any(row.status in ("failed", "error", "crashed", "timeout", "out_of_memory") for row in rows):
        return FAILED
    return 0 if compared else INCONCLUSIVE


def _present(session: Session, models: Sequence[str]) -> list[str]:
    """Models that were asked for, or those that are there.

    Raises: UsageError for one that was asked for and is not there, or where none is.
    """
    lacking: dict[str, str | None] = {}
    with session.supervise_together([]) as worker:
        for model in models or MODELS:
            answer = worker.ask("lacking", model=model)
            lacking[model] = answer.get("lacking") or answer.get("reason")
    there = [model for model, reason in lacking.items() if reason is None]
    for model, reason in lacking.items():
        if reason is not None and (models or not there):
            raise click.UsageError(f"--model {model}: {reason}")
        if reason is not None:
            click.echo(f"left out: --model {model}: {reason}", err=True)
    return there


def _fitting(session: Session, asked: Sequence[str]) -> list[str]:
    """Implementations that were asked for, or all that compute what a model's layers call.

    Raises: UsageError for one that was asked for and computes something else; PluginError.
    """
    names = loadable(session, chosen_implementations(asked), asked=bool(asked))
    computed = {name: session.declared[name]["operator"] for name in names}
    for name, operator in computed.items():
        if asked and operator != OPERATOR:
            raise click.UsageError(f"IMPLEMENTATION must compute {OPERATOR}, got {name!r}, which computes {operator}")
    return [name for name in names if computed[name] == OPERATOR]


def _cells(row: Row) -> list[str]:
    """A row as text, in the order of the columns."""
    share = "" if row.error is None or not row.allowed else f"{row.error / row.allowed:.2f}"
    ratio = row.contest.ratio if row.contest else None
    told = f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else ""
    state = row.contest.state if row.contest else row.untimed or (row.reason and f"{row.status}: {row.reason}")
    return [
        row.model,
        row.implementation,
        "" if row.largest is None else f"{row.largest:.2e}",
        "" if row.cosine is None else f"{row.cosine:.9f}",
        share,
        "1" if row.timing and not row.contest else told,
        state,
    ]


def _print(rows: Sequence[Row], *, err: bool) -> None:
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, _cells(row)))
    out = console(err=err)
    out.print(table)
    out.print(Text(LEGEND, style="dim"))


def _write(rows: Sequence[Row], reports: Path | None, json_file: IO[str] | None, asked: Asked) -> None:
    """Files that were asked for."""
    if json_file:
        # msgspec writes NaN, which JSON has no word for, as null.
        told = msgspec.json.encode({"schema": SCHEMA, "asked": asked, "rows": rows})
        json_file.write(msgspec.json.format(told, indent=1).decode() + "\n")
    if reports is None:
        return
    reports.mkdir(parents=True, exist_ok=True)
    with (reports / "drop_in.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(map(_cells, rows))
    lines = [
        "## Attention in real models",
        "",
        f"{asked.batch} sentences of up to {asked.length} tokens; {LEGEND}.",
        "",
    ]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in _cells(row)) + " |" for row in rows]
    (reports / "drop_in.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
