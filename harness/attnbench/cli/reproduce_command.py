"""``attnbench reproduce``: re-run one check of one case, or write the case as a program."""

from pathlib import Path
from typing import Any

import click

from attnbench.checks.catalogue import read_checks
from attnbench.cli.jobs import make_session
from attnbench.cli.options import options
from attnbench.cli.selection import choose_checks
from attnbench.plugins.registry import check_name, display_name, write_import_lines
from attnbench.records.types import FAILURES
from attnbench.runner import Session, conform
from attnbench.runner.progress import NoProgress


@click.command("reproduce")
@click.argument("case")
@click.argument("implementation")
@click.option("--check", "check", help="Check to run; a script needs none.")
@click.option(
    "--script", is_flag=True, help="Print a standalone program instead, which imports torch and the implementation."
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.py",
    help="Write the program of --script to FILE.py, and its tensors to FILE.pt.",
)
@options("timeout", "memory_limit", "work_limit", "threads")
def command(
    case: str, implementation: str, check: str | None, *, script: bool, output: Path | None, **given: Any
) -> int:
    """Re-run one check of one CASE on an IMPLEMENTATION, and print the complete finding."""
    check_name(implementation)
    if output is not None and (output.suffix != ".py" or not script):
        raise click.UsageError(f"--output must be FILE.py, the program that --script writes, got {output}")
    with make_session(given) as session:
        if fault := session.ask_oracle("parse", case=case).get("fault"):
            raise click.UsageError(f"CASE: {fault}")
        if script:
            return _write_script(session, case, implementation, output)
        if check is None:
            raise click.UsageError("--check is missing: name the check to run, as in the last line of a failure")
        return _run_check(session, case, implementation, check)


def _run_check(session: Session, case: str, implementation: str, check: str) -> int:
    """Run one check, print its finding, and return the exit code."""
    chosen = choose_checks([check])
    plans = session.plan([case], chosen)
    if not plans:
        raise click.UsageError(f"--check: {check} does not apply to this case")
    results = list(conform(session, [implementation], plans, run="", progress=NoProgress()))
    if not results:
        raise _describe_other_operator(session, case, implementation)
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


def _describe_other_operator(session: Session, case: str, implementation: str) -> click.UsageError:
    computed, asked = session.declared[implementation]["operator"], case.partition("/")[0]
    return click.UsageError(f"IMPLEMENTATION must compute {asked}, the operator of CASE, got {computed}")


def _write_script(session: Session, case: str, implementation: str, output: Path | None) -> int:
    """Print the standalone program, or write it to the file ``output`` and its tensors beside it."""
    load = write_import_lines(implementation)
    with session.supervise(implementation) as worker:
        if worker.operator != case.partition("/")[0]:
            raise _describe_other_operator(session, case, implementation)
        described = worker.ask("describe", implementation=implementation, case=case)
        form = worker.ask("form", implementation=implementation)
    declared = session.declared[implementation]
    subject = {
        "name": display_name(implementation), "load": load, "form": form, "environment": declared["environment"]
    }  # fmt: skip
    fault = described.get("unsupported") or described.get("reason") or form.get("fault") or form.get("reason")
    if fault:
        raise click.UsageError(f"--script: {fault}")
    beside = None if output is None else str(output.resolve().with_suffix(".pt"))
    answer = session.ask_oracle("script", case=case, subject=subject, policies=declared["policies"], beside=beside)
    if "fault" in answer:
        raise click.UsageError(f"--script: {answer['fault']}")
    if output is None:
        click.echo(answer["script"], nl=False)
    else:
        output.write_text(answer["script"], encoding="utf-8")
    return 0
