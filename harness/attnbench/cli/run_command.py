"""``attnbench run``: conform, profile and report."""

from typing import Any

import click

from attnbench.cli.jobs import (
    Choice,
    audited_expectations,
    conform_into,
    conform_plans,
    profile_plans,
    profile_with_ceilings,
    say_stored,
    session_for,
)
from attnbench.cli.options import LENGTHS, QUICK_LENGTHS, options
from attnbench.cli.recording import recording, write_json
from attnbench.cli.selection import chosen_implementations, operators_of, taking_part
from attnbench.cli.terminal import print_findings, print_timings


@click.command("run")
@click.argument("implementations", nargs=-1)
@options("suite", "operator", "lengths", "passes", "device", "dtype", "shard", "expected", "processes", "threads")
@options("timeout", "memory_limit", "work_limit", "case_budget", "results", "reports", "resume", "json")
def command(implementations: tuple[str, ...], **given: Any) -> int:
    """Conform, profile and report: the main job. The last line is the path of the report's page."""
    from attnbench.records.run_file import read
    from attnbench.report import write

    choice = Choice.of(given)
    lengths = given["lengths"] or (QUICK_LENGTHS if choice.suite == "quick" else LENGTHS)
    chosen = chosen_implementations(implementations)
    with session_for(given) as session:
        chosen = taking_part(
            session, chosen, asked=bool(implementations), operators=given["operators"],
            compiling=choice.suite != "quick",
        )  # fmt: skip
        operators = operators_of(session, chosen)
        plans = conform_plans(session, choice, operators)
        timed = profile_plans(session, choice, operators, lengths=lengths, passes=given["passes"])
        expectations = audited_expectations(session, chosen, plans, choice)
        with recording(
            session, results=given["results"], suite=choice.suite, cases=[plan.case for plan in plans + timed],
            implementations=chosen, resume=given["resume"],
        ) as recorded:  # fmt: skip
            conform_into(recorded, session, chosen, plans, choice, expectations)
            profile_with_ceilings(recorded, session, chosen, timed, given)
    if given["json_file"]:
        write_json(recorded, given["json_file"])
    to_stderr = given["json_file"] is not None and given["json_file"].name == "-"
    print_findings(recorded.told(), err=to_stderr)
    print_timings(recorded.told(), err=to_stderr)
    say_stored(recorded)
    click.echo(write([read(recorded.file.path)], given["reports"]), err=to_stderr)
    return recorded.exit_code(implementations)
