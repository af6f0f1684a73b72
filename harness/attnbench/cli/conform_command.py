"""``attnbench conform``: the checks over a suite."""

import sys
from typing import Any

import click

from attnbench.cli.jobs import Choice, conform_into, conform_plans, say_stored, session_for
from attnbench.cli.options import options
from attnbench.cli.recording import recording, write_json
from attnbench.cli.selection import chosen_implementations, loadable
from attnbench.cli.terminal import print_findings


@click.command("conform")
@click.argument("implementations", nargs=-1)
@options("suite", "case", "check", "device", "dtype", "shard", "expected", "timeout", "memory_limit", "work_limit")
@options("threads", "results", "resume", "json")
def command(implementations: tuple[str, ...], **given: Any) -> int:
    """Check implementations against the reference over a suite of cases.

    Each IMPLEMENTATION is a registered name, package.module:attribute or path/to/file.py:attribute; all registered
    ones if none is named. Exit code 0: everything held; 1: a failure; 2: usage; 3: nothing of one was checked.
    """
    choice = Choice(
        suite=given["suite"],
        patterns=given["patterns"],
        checks=given["checks"],
        dtypes=given["dtypes"],
        device=given["device"],
        shard=given["shard"],
        expected=given["expected"],
    )
    chosen = chosen_implementations(implementations)
    with session_for(given) as session:
        plans = conform_plans(session, choice)
        chosen = loadable(session, chosen, asked=bool(implementations))
        cases = [plan.case for plan in plans]
        with recording(
            session, results=given["results"], suite=choice.suite, cases=cases, implementations=chosen,
            resume=given["resume"],
        ) as recorded:  # fmt: skip
            conform_into(recorded, session, chosen, plans, choice)
    if given["json_file"]:
        write_json(recorded, given["json_file"])
    to_stderr = given["json_file"] is not None and given["json_file"].name == "-"
    print_findings(recorded.results.values(), err=to_stderr)
    say_stored(recorded)
    sys.stdout.flush()
    return recorded.exit_code(implementations)
