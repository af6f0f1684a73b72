"""``attnbench reproduce``: re-run one check of one case."""

from typing import Any

import click

from attnbench.cases import CaseId
from attnbench.checks.catalogue import read_checks
from attnbench.cli.jobs import make_session
from attnbench.cli.options import options
from attnbench.cli.selection import choose_checks
from attnbench.plugins.registry import check_name, write_import_lines
from attnbench.processes.oracle_requests import CheckCase, WriteScript
from attnbench.processes.request import Fault
from attnbench.records.types import FAILURES
from attnbench.runner import Session, conform
from attnbench.runner.progress import NoProgress


@click.command("reproduce")
@click.argument("case")
@click.argument("implementation")
@click.option("--check", "check", help="Name of the check to run. Not needed with --script.")
@click.option(
    "--script",
    is_flag=True,
    help="Instead of running a check, print the case as a program that does not import attnbench.",
)
@options("timeout", "memory_limit", "work_limit", "threads", "no_cache")
def command(case: str, implementation: str, check: str | None, *, script: bool, **given: Any) -> int:
    """Re-run one check of one CASE on an IMPLEMENTATION, and print the complete finding."""
    check_name(implementation)
    with make_session(given) as session:
        if fault := session.ask_oracle(CheckCase(case=case)):
            raise click.UsageError(f"CASE: {fault.reason}")
        if script:
            return _print_script(session, case, implementation)
        if check is None:
            raise click.UsageError("--check is missing: name the check to run (the last line of a failure names it)")
        chosen = choose_checks([check])
        plans = session.plan([case], chosen)
        if not plans:
            raise click.UsageError(f"--check: {check} does not apply to this case")
        results = list(conform(session, [implementation], plans, run="", progress=NoProgress()))
        if not results:
            computed, asked = session.declared[implementation].operator, CaseId.parse(case).operator
            raise click.UsageError(f"IMPLEMENTATION must compute {asked}, the operator of CASE, got {computed}")
    (finding,) = results[0].findings
    click.echo(f"{implementation}  {check}: {finding.status}")
    requirement = read_checks()[check].requirement
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
    answer = session.ask_oracle(WriteScript(case=case, load=write_import_lines(implementation)))
    if isinstance(answer, Fault):
        raise click.UsageError(f"--script: {answer.reason}")
    click.echo(answer.text, nl=False)
    return 0
