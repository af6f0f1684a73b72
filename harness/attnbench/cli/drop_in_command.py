"""``attnbench drop-in``: compare a real model with itself after its attention is replaced."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from attnbench.api.execution import make_session
from attnbench.api.progress import show_progress
from attnbench.api.selection import choose_implementations, drop_unloadable
from attnbench.cli.options import complete_names, options
from attnbench.cli.recording import FAILED, INCONCLUSIVE
from attnbench.integrations.drop_in import WORKER, DropInClient, Row, Settings, drop_in
from attnbench.integrations.drop_in_requests import FindMissing
from attnbench.jobs.fields import FIELDS, parse_fields
from attnbench.jobs.job import Job, build
from attnbench.processes.candidate_requests import Outcome
from attnbench.records.types import FAILURES, SCHEMA
from attnbench.report.console import Console
from attnbench.report.text_table import TextTable, print_tables
from attnbench.runner import Session
from attnbench.runner.candidate_pool import TIMING
from attnbench.words.findings import describe_facts

MODELS = ("encoder", "transformers")
# Operator that the layers of both models call.
OPERATOR = "multihead"
# Default number of sentences in a batch, and of tokens in the longest sentence: a typical batch for
# computing sentence embeddings.
BATCH, LENGTH = 16, 128
# PROCESSES: default number of timing processes, each newly started; ten are enough for a speed
# verdict. BUDGET_S: default time of each process, in seconds, enough for some dozen model calls.
PROCESSES, BUDGET_S = 10, 6.0
COLUMNS = ("model", "implementation", "largest difference", "cosine", "error / allowed", "time ratio", "state")
LEGEND = (
    "largest difference: largest absolute difference between an element of the embeddings and the same element of the "
    "original model's embeddings; cosine: smallest cosine similarity to the original model's embeddings; "
    "error / allowed: error of the embeddings against the model in float64, divided by the allowed error; "
    "time ratio: time of the whole model divided by the original model's time, from interleaved calls, with its "
    "confidence interval"
)


@click.command("drop-in")
@click.argument("implementations", nargs=-1, shell_complete=complete_names)
@click.option(
    "--model",
    "models",
    type=click.Choice(MODELS),
    multiple=True,
    help="Model whose attention is replaced. Default: every available model.",
)
@click.option("--batch", type=click.IntRange(min=1), default=BATCH, show_default=True, help="Number of sentences.")
@click.option(
    "--length",
    type=click.IntRange(min=4, max=512),
    default=LENGTH,
    show_default=True,
    help="Number of tokens of the longest sentence. Half of all tokens of the batch are padding.",
)
@click.option("--budget", "budget_s", metavar="SECONDS", help=f"Time of each timing process, such as {BUDGET_S:g}s.")
@click.option(
    "--reports", type=click.Path(file_okay=False, path_type=Path), help="Folder for drop_in.csv and drop_in.md."
)
@options("processes", "threads", "timeout", "memory_limit", "work_limit", "json")
def command(
    implementations: tuple[str, ...],
    *,
    models: tuple[str, ...],
    batch: int,
    length: int,
    reports: Path | None,
    json_file: Any,
    **raw: Any,
) -> int:
    """Swap implementations into a real sentence encoder, and compare its embeddings and its time with the original's.

    Each IMPLEMENTATION is a registered name, package.module:attribute or path/to/file.py:attribute. Without
    IMPLEMENTATION, every registered implementation of multi-head attention is used. The models are two forms of
    all-MiniLM-L6-v2. One is built of nn.TransformerEncoderLayer, and its self_attn is replaced. The other is Hugging
    Face's BertModel, and its attention function is replaced. Exit code 0: every implementation that supports the
    model's layers gives embeddings within the error budget; 1: an implementation gives embeddings outside the error
    budget; 3: no implementation supports the layers.
    """
    effort = {name: raw.pop(name) for name in ("processes", "budget_s")}
    job, found = build(Job, raw), parse_fields({name: FIELDS[name] for name in effort}, effort)
    asked = Settings(
        batch=batch,
        length=length,
        processes=found.get("processes", PROCESSES),
        budget_s=found.get("budget_s", BUDGET_S),
    )
    session = make_session(job)
    session.worker_module = WORKER
    with session:
        available = _find_models(session, models)
        names = _choose_fitting(session, implementations)
        rows: list[Row] = []
        try:
            with show_progress() as progress:
                rows.extend(drop_in(session, names, available, asked, progress=progress))
        finally:
            # Write the rows that exist, also after an error or an interrupt. If there is no row, do
            # not overwrite the files of earlier runs.
            if rows:
                _write(rows, reports, json_file, asked)
                _print(rows, err=json_file is not None and json_file.name == "-")
    compared = [row for row in rows if row.cosine is not None]
    if any(row.status in FAILURES for row in rows):
        return FAILED
    return 0 if compared else INCONCLUSIVE


def _find_models(session: Session, models: Sequence[str]) -> list[str]:
    """Return the models named by --model, or all available models if none is named.

    Raises: UsageError where a named model is not available, or where no model is available.
    """
    lacking: dict[str, str | None] = {}
    with session.workers.get([], TIMING) as worker:
        for model in models or MODELS:
            answer = DropInClient(worker).ask(FindMissing(model=model))
            lacking[model] = describe_facts(answer.facts) if isinstance(answer, Outcome) else answer.reason
    available = [model for model, reason in lacking.items() if reason is None]
    for model, reason in lacking.items():
        if reason is not None and (models or not available):
            raise click.UsageError(f"--model {model}: {reason}")
        if reason is not None:
            click.echo(f"left out: --model {model}: {reason}", err=True)
    return available


def _choose_fitting(session: Session, asked: Sequence[str]) -> list[str]:
    """Return the implementations in ``asked``; if it is empty, all loadable implementations of ``OPERATOR``.

    Raises: UsageError where an implementation in ``asked`` computes another operator; PluginError
    where an implementation in ``asked`` cannot be loaded.
    """
    names = drop_unloadable(session, choose_implementations(asked), asked=bool(asked))
    computed = {name: session.declared[name].operator for name in names}
    for name, operator in computed.items():
        if asked and operator != OPERATOR:
            raise click.UsageError(f"IMPLEMENTATION must compute {OPERATOR}, got {name!r}, which computes {operator}")
    return [name for name in names if computed[name] == OPERATOR]


def _format_cells(row: Row) -> list[str]:
    """Return one text for each of ``COLUMNS``; a text is empty if its value is unknown."""
    share = "" if row.error is None or not row.allowed else f"{row.error / row.allowed:.2f}"
    ratio = row.contest.ratio if row.contest else None
    ratio_text = f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else ""
    state = row.contest.state if row.contest else row.untimed or (row.reason and f"{row.status}: {row.reason}")
    return [
        row.model,
        row.implementation,
        "" if row.largest is None else f"{row.largest:.2e}",
        "" if row.cosine is None else f"{row.cosine:.9f}",
        share,
        "1" if row.timing and not row.contest else ratio_text,
        state,
    ]


def _print(rows: Sequence[Row], *, err: bool) -> None:
    table = TextTable(head=tuple(COLUMNS), rows=tuple(tuple(_format_cells(row)) for row in rows))
    out = Console.of(err=err)
    print_tables([table], out)
    out.print_wrapped(LEGEND, "dim")


def _write(rows: Sequence[Row], reports: Path | None, json_file: IO[str] | None, asked: Settings) -> None:
    """Write JSON to ``json_file``, and CSV and Markdown into the folder ``reports``.

    If ``json_file`` or ``reports`` is None, the files that belong to it are not written.
    """
    if json_file:
        # msgspec writes NaN, which JSON cannot represent, as null.
        encoded = msgspec.json.encode({"schema": SCHEMA, "asked": asked, "rows": rows})
        json_file.write(msgspec.json.format(encoded, indent=1).decode() + "\n")
    if reports is None:
        return
    reports.mkdir(parents=True, exist_ok=True)
    with (reports / "drop_in.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(map(_format_cells, rows))
    lines = [
        "## Attention in real models",
        "",
        f"{asked.batch} sentences of up to {asked.length} tokens; {LEGEND}.",
        "",
    ]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in _format_cells(row)) + " |" for row in rows]
    (reports / "drop_in.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
