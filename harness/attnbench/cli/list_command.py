"""``attnbench list``: the implementations, and the number of cases that each supports here."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import click
from rich.table import Column, Table
from rich.text import Text

from attnbench.cases import CaseId
from attnbench.cli.options import options
from attnbench.cli.progress import show_progress
from attnbench.cli.selection import choose_implementations
from attnbench.cli.terminal import make_console
from attnbench.plugins.registry import PluginError, describe_origin
from attnbench.records.environment import count_cores
from attnbench.records.types import SCHEMA
from attnbench.runner import Session

# Largest number of reasons for refusal in the row of one implementation.
SHOWN = 3


@click.command("list")
@click.argument("implementations", nargs=-1)
@options("device", "json")
def command(implementations: tuple[str, ...], device: str, json_file: Any) -> int:
    """List implementations: the origin of each, what it supports here, and why it refuses the rest.

    Counts are over the cases of the suite core.
    """
    chosen, rows, parallel = choose_implementations(implementations), [], count_cores()
    with Session() as session, show_progress() as progress, ThreadPoolExecutor(max_workers=parallel) as pool:
        progress.begin("list", len(chosen), parallel=parallel)
        try:
            for row in pool.map(lambda name: _survey(session, name, device), chosen):
                rows.append(row)
                progress.done(row["name"])
                progress.now(row["name"])
        finally:
            # After an error or an interrupt, do not survey the remaining implementations.
            pool.shutdown(cancel_futures=True)
    if json_file:
        import json

        json.dump({"schema": SCHEMA, "implementations": rows}, json_file, indent=1)
        json_file.write("\n")
        return 0
    # Fold long names and origins instead of cropping them: users copy them.
    names, origins = Column("implementation", overflow="fold"), Column("from", overflow="fold")
    table = Table(names, "takes", "refuses", origins, box=None, pad_edge=False)
    for row in rows:
        reasons = list(row["refused"].items())
        lines = [f"{count} × {reason}" for reason, count in reasons[:SHOWN]]
        lines += [f"and {len(reasons) - SHOWN} more"] if len(reasons) > SHOWN else []
        takes, refuses = f"{row['supported']} of {row['cases']}", Text(row["fault"] or "\n".join(lines))
        table.add_row(row["name"], takes, refuses, row["origin"])
    make_console().print(table)
    return 0


def _survey(session: Session, name: str, device: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("name", "operator", "origin", "fault"), "") | {"name": name}
    row |= {"cases": 0, "supported": 0, "refused": {}}
    try:
        row["origin"] = describe_origin(name)
        with session.supervise(name) as worker:
            cases = session.ask_oracle("suite", operator=worker.operator, level="core")
            cases = [str(replace(CaseId.parse(case), device=device)) for case in cases]
            row |= {"operator": worker.operator, "cases": len(cases)}
            answer = worker.ask("survey", implementation=name, cases=cases)
            source = worker.declared[name]["source"]
    except PluginError as error:
        return row | {"fault": str(error)}
    if "status" in answer:
        return row | {"fault": answer["reason"]}
    return row | answer | {"source": source}
