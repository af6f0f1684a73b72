"""``attnbench list``: what there is, and what of it works here."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
from rich.table import Column, Table
from rich.text import Text

from attnbench.cli.options import options
from attnbench.cli.progress import progress
from attnbench.cli.selection import chosen_implementations
from attnbench.cli.terminal import console
from attnbench.plugins.registry import PluginError, origin
from attnbench.records.environment import cores
from attnbench.records.types import SCHEMA
from attnbench.runner import Session

# Reasons for refusing that are shown for one implementation.
SHOWN = 3


@click.command("list")
@click.argument("implementations", nargs=-1)
@options("device", "json")
def command(implementations: tuple[str, ...], device: str, json_file: Any) -> int:
    """Implementations, where each comes from, what it supports here and why not the rest.

    Counts are over the cases of the suite core.
    """
    chosen, rows, abreast = chosen_implementations(implementations), [], cores()
    with Session() as session, progress() as steps, ThreadPoolExecutor(max_workers=abreast) as pool:
        steps.begin("list", len(chosen), abreast=abreast)
        try:
            for row in pool.map(lambda name: _survey(session, name, device), chosen):
                rows.append(row)
                steps.done(row["name"])
                steps.now(row["name"])
        finally:
            # Left early, it does not go on with those that are to come.
            pool.shutdown(cancel_futures=True)
    if json_file:
        import json

        json.dump({"schema": SCHEMA, "implementations": rows}, json_file, indent=1)
        json_file.write("\n")
        return 0
    # What is to be copied is never cut.
    names, origins = Column("implementation", overflow="fold"), Column("from", overflow="fold")
    table = Table(names, "takes", "refuses", origins, box=None, pad_edge=False)
    for row in rows:
        reasons = list(row["refused"].items())
        told = [f"{count} × {reason}" for reason, count in reasons[:SHOWN]]
        told += [f"and {len(reasons) - SHOWN} more"] if len(reasons) > SHOWN else []
        takes, refuses = f"{row['supported']} of {row['cases']}", Text(row["fault"] or "\n".join(told))
        table.add_row(row["name"], takes, refuses, row["origin"])
    console().print(table)
    return 0


def _survey(session: Session, name: str, device: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("name", "operator", "origin", "fault"), "") | {"name": name}
    row |= {"cases": 0, "supported": 0, "refused": {}}
    try:
        row["origin"] = origin(name)
        with session.supervise(name) as worker:
            cases = session.judge("suite", operator=worker.operator, level="core")
            cases = [case.replace("/cpu/", f"/{device}/") for case in cases]
            row |= {"operator": worker.operator, "cases": len(cases)}
            answer = worker.ask("survey", implementation=name, cases=cases)
            source = worker.declared[name]["source"]
    except PluginError as error:
        return row | {"fault": str(error)}
    if "status" in answer:
        return row | {"fault": answer["reason"]}
    return row | answer | {"source": source}
