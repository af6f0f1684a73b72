"""``attnbench compare``: what changed between two runs."""

from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from attnbench.cli.options import options
from attnbench.cli.terminal import console

# Relative change of time that counts, unless told otherwise. Two runs are two moments: identical code differed by up
# to 6 % in ten alternating processes a side, hence no less than 5 %.
THRESHOLD = 0.05


@click.command("compare")
@click.argument("base")
@click.argument("new")
@click.option("--threshold", type=click.FloatRange(min=0, min_open=True), default=THRESHOLD, show_default=True)
@options("results", "json")
def command(base: str, new: str, *, threshold: float, results: Path, json_file: Any) -> int:
    """What became slower, faster, bigger or wrong from run BASE to run NEW.

    Times are compared by their ratios to the reference, each taken in turns with it in its own run; bytes as they are.
    A change whose interval is too wide to tell is unknown, and not listed. Exit code 0: nothing became worse;
    1: something did, or a result is gone; 3: the runs have nothing in common.
    """
    from attnbench.comparison import WORSE, changes
    from attnbench.results import find, read

    before, after = (read(path) for path in find(results, [base, new]))
    found = list(changes(before, after, threshold=threshold))
    if json_file:
        _write_json(found, json_file)
        return _exit_code(found, WORSE)
    if before.run.machine.name != after.run.machine.name:
        click.echo(
            f"made on {before.run.machine.name} and on {after.run.machine.name}: times and bytes are not compared",
            err=True,
        )
    if before.run.suite_digest != after.run.suite_digest:
        click.echo("the runs hold other cases: only those that both have are compared", err=True)
    table = Table("verdict", "implementation", "aspect", "from → to", "case", box=None, pad_edge=False)
    for change in (change for change in found if change.verdict not in ("same", "unknown")):
        style = "red" if change.verdict in WORSE else "green"
        verdict = Text(change.verdict, style=style)
        table.add_row(verdict, change.implementation, change.aspect, Text(change.told), Text(change.case))
    if table.row_count:
        console().print(table)
    counts = Counter(change.verdict for change in found)
    click.echo(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) or "nothing in common")
    return _exit_code(found, WORSE)


def _exit_code(found: list[Any], worse: frozenset[Any]) -> int:
    if not found:
        return 3
    return 1 if any(change.verdict in worse for change in found) else 0


def _write_json(found: list[Any], file: Any) -> None:
    import json
    from dataclasses import asdict

    from attnbench.records import SCHEMA

    json.dump({"schema": SCHEMA, "changes": [asdict(change) for change in found]}, file, indent=1)
    file.write("\n")
