"""``attnbench list``: the implementations; with ``--support``, the cases that each supports."""

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import IO, Any

import click

from attnbench.api.progress import show_progress
from attnbench.api.selection import choose_implementations
from attnbench.cases import CaseId
from attnbench.cli.options import complete_names, options
from attnbench.jobs.job import ConformJob, build
from attnbench.plugins.import_faults import find_import_fault
from attnbench.plugins.registry import PluginError, describe_origin
from attnbench.processes.candidate_requests import DescribeAll, Outcome
from attnbench.processes.oracle_requests import ListSuite
from attnbench.records.environment import count_cores
from attnbench.records.types import SCHEMA
from attnbench.refusals import TypedRefusal
from attnbench.report.console import Console
from attnbench.report.text_table import TextTable, print_tables
from attnbench.runner import Session
from attnbench.words.findings import describe_facts
from attnbench.words.refusals import describe_refusal

# Largest number of reasons for refusing cases that the row of one implementation shows.
SHOWN = 3


@click.command("list")
@click.argument("implementations", nargs=-1, shell_complete=complete_names)
@click.option(
    "--support",
    is_flag=True,
    help="Load the implementations; count the cases that each supports, and say why it refuses the others.",
)
@options("device", "json")
def command(implementations: tuple[str, ...], *, support: bool, device: str | None, json_file: Any) -> int:
    """List implementations and their origin; with --support, also what each supports and refuses.

    An implementation whose name begins with core_ is a kernel, which is checked without projections. The
    implementations of attnmechanisms compute operators other than multi-head attention.

    Without --support no implementation is loaded. With --support every case of the suite core is
    counted as supported or refused on this machine, which takes about a minute.
    """
    if device is not None and not support:
        raise click.UsageError("--device selects the cases that --support counts: add --support")
    job = build(ConformJob, {"device": device})
    chosen = choose_implementations(implementations)
    rows = _survey_all(chosen, job.device) if support else [_describe(name) for name in chosen]
    if json_file:
        _write_json(rows, json_file)
    elif support:
        _print_support(rows)
    else:
        _print_origins(rows)
    if not support:
        complete = shlex.join(["attnbench", "list", "--support", *implementations])
        click.echo(
            f"{complete} lists what each implementation supports on this machine, and why it refuses the rest", err=True
        )
    return 0


def _describe(name: str) -> dict[str, Any]:
    """Return name, origin and import fault of an implementation that is not loaded.

    The fault says why the implementation cannot be imported; it is empty if none is known.
    """
    row = {"name": name, "origin": "", "fault": ""}
    try:
        row["origin"] = describe_origin(name)
        row["fault"] = find_import_fault(name) or ""
    except PluginError as error:
        row["fault"] = str(error)
    return row


def _survey_all(names: Sequence[str], device: str) -> list[dict[str, Any]]:
    rows, parallel = [], count_cores()
    with Session() as session, show_progress() as progress, ThreadPoolExecutor(max_workers=parallel) as pool:
        progress.begin("list", len(names), parallel=parallel)
        try:
            for row in pool.map(lambda name: _survey(session, name, device), names):
                rows.append(row)
                progress.done(row["name"])
                progress.now(row["name"])
        finally:
            # After an error or an interrupt, do not survey the remaining implementations.
            pool.shutdown(cancel_futures=True)
    return rows


def _survey(session: Session, name: str, device: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("name", "operator", "origin", "fault"), "") | {"name": name}
    row |= {"cases": 0, "supported": 0, "refused": {}}
    try:
        row["origin"] = describe_origin(name)
        with session.workers.get([name]) as worker:
            cases = session.ask_oracle(ListSuite(operator=worker.operator, level="core"))
            cases = [str(replace(CaseId.parse(case), device=device)) for case in cases]
            row |= {"operator": worker.operator, "cases": len(cases)}
            answer = worker.ask(DescribeAll(implementation=name, cases=cases))
            source = worker.declared[name].source
    except PluginError as error:
        return row | {"fault": str(error)}
    counts: Counter[TypedRefusal] = Counter()
    for one in [answer] if isinstance(answer, Outcome) else answer.by_case:
        if isinstance(one, Outcome):
            return row | {"fault": describe_facts(one.facts)}
        if one.unsupported is not None:
            counts[one.unsupported] += 1
    refused = {describe_refusal(refusal): count for refusal, count in counts.most_common()}
    return row | {"supported": len(cases) - counts.total(), "refused": refused, "source": source}


def _write_json(rows: Sequence[dict[str, Any]], file: IO[str]) -> None:
    json.dump({"schema": SCHEMA, "implementations": rows}, file, indent=1)
    file.write("\n")


def _print_origins(rows: Sequence[dict[str, Any]]) -> None:
    lines: list[tuple[str, ...]] = []
    for row in rows:
        lines.append((row["name"], row["origin"]))
        if row["fault"]:
            lines.append(("", row["fault"]))
    print_tables([TextTable(head=("implementation", "from"), rows=tuple(lines))], Console.of())


def _print_support(rows: Sequence[dict[str, Any]]) -> None:
    made: list[tuple[str, ...]] = []
    for row in rows:
        reasons = list(row["refused"].items())
        lines = [f"{count} × {reason}" for reason, count in reasons[:SHOWN]]
        lines += [f"and {len(reasons) - SHOWN} more reasons"] if len(reasons) > SHOWN else []
        takes, refuses = f"{row['supported']} of {row['cases']}", row["fault"] or "\n".join(lines)
        made.append((row["name"], takes, refuses, row["origin"]))
    print_tables([TextTable(head=("implementation", "takes", "refuses", "from"), rows=tuple(made))], Console.of())
