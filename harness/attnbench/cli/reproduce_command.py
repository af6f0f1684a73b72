"""``attnbench reproduce``: one check of one case again."""

from typing import Any

import click

from attnbench.checks.catalogue import checks
from attnbench.cli.jobs import session_for
from attnbench.cli.options import options
from attnbench.cli.selection import chosen_checks
from attnbench.plugins.registry import known, load_lines
from attnbench.records.types import FAILURES
from attnbench.runner import Session, conform
from attnbench.runner.progress import NoProgress


@click.command("reproduce")
@click.argument("case")
@click.argument("implementation")
@click.option("--check", "check", help="Check to run; a script needs none.")
@click.option("--script", is_flag=True, help="Print a standalone program instead; it imports no attnbench.")
@options("timeout", "memory_limit", "work_limit", "threads")
def command(case: str, implementation: str, check: str | None, *, script: bool, **given: Any) -> int:
    """Run one CHECK of one CASE on an IMPLEMENTATION again, and say all that it found."""
    known(implementation)
    with session_for(given) as session:
        if fault := session.judge("parse", case=case).get("fault"):
            raise click.UsageError(f"CASE: {fault}")
        if script:
            return _print_script(session, case, implementation)
        if check is None:
            raise click.UsageError("--check is needed: the name of the check to run, as a failure's last line has it")
        chosen = chosen_checks([check])
        plans = session.plan([case], chosen)
        if not plans:
            raise click.UsageError(f"--check: {check} says nothing about this case")
        results = list(conform(session, [implementation], plans, run="", steps=NoProgress()))
        if not results:
            computed, asked = session.declared[implementation]["operator"], case.partition("/")[0]
            raise click.UsageError(f"IMPLEMENTATION must compute {asked}, as CASE does, got one of {computed}")
    (finding,) = results[0].findings
    click.echo(f"{implementation}  {check}: {finding.status}")
    requirement = checks()[check].requirement
    click.echo(f"  requirement  {requirement}")
    if finding.reason:
        click.echo(f"  reason       {finding.reason.removeprefix(requirement).strip()}")
    if finding.measured is not None:
        click.echo(f"  measured     {finding.measured:.6g}, allowed {finding.allowed:.6g}")
    for warning in finding.warnings:
        click.echo(f"  warning      {warning}")
    if finding.status in FAILURES:
        return 1
    return 0 if finding.status == "passed" else 3


def _print_script(session: Session, case: str, implementation: str) -> int:
    answer = session.judge("script", case=case, load=load_lines(implementation))
    if "fault" in answer:
        raise click.UsageError(f"--script: {answer['fault']}")
    click.echo(answer["script"], nl=False)
    return 0
