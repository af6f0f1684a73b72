"""``attnbench reproduce``: re-run one check of one case, or write the case as a program."""

from pathlib import Path
from typing import Any

import click

from attnbench.api.execution import make_session
from attnbench.api.selection import choose_checks
from attnbench.cases import CaseId
from attnbench.checks.catalogue import read_checks
from attnbench.cli.options import complete_names, options
from attnbench.jobs.job import Job, build
from attnbench.plugins.file_objects import read_name
from attnbench.plugins.registry import display_name, write_import_lines
from attnbench.processes.candidate_requests import Declaration, Describe, FindForm
from attnbench.processes.oracle_requests import CheckCase, WriteScript
from attnbench.processes.request import Fault
from attnbench.processes.script_subject import SHOWN_CHECKS, Form, Subject
from attnbench.records.types import FAILURES
from attnbench.runner import Session, conform
from attnbench.runner.progress import NoProgress
from attnbench.words.findings import describe_facts, describe_finding, describe_reason
from attnbench.words.refusals import describe_refusal


@click.command("reproduce")
@click.argument("case")
@click.argument("implementation", shell_complete=complete_names)
@click.option("--check", "check", help="Name of the check to run. --script says if its program cannot show this check.")
@click.option(
    "--script",
    is_flag=True,
    help="Instead of running a check, print the case as a program that imports torch and the implementation only. The "
    "program makes one plain call.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.py",
    help="Write the program of --script to FILE.py, and its tensors to FILE.pt.",
)
@options("timeout", "memory_limit", "work_limit", "threads", "no_cache")
def command(case: str, implementation: str, check: str | None, *, script: bool, output: Path | None, **raw: Any) -> int:
    """Re-run one check of one CASE on an IMPLEMENTATION, and print the complete finding."""
    implementation = read_name(implementation)
    if output is not None and (output.suffix != ".py" or not script):
        raise click.UsageError(f"--output must be FILE.py, the program that --script writes, got {output}")
    with make_session(build(Job, raw)) as session:
        if fault := session.ask_oracle(CheckCase(case=case)):
            raise click.UsageError(f"CASE: {fault.reason}")
        if script:
            unshown = tuple(sorted((choose_checks([check]) or set()) - SHOWN_CHECKS)) if check else ()
            return _write_script(session, case, implementation, output, unshown)
        if check is None:
            raise click.UsageError(
                "--check is missing: name the check to run (the last line of a printed failure has the name)"
            )
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
    click.echo(f"  requirement  {read_checks()[check].requirement}")
    if finding.status != "passed":
        click.echo(f"  reason       {describe_finding(finding)}")
    if finding.measured is not None:
        click.echo(f"  measured     {finding.measured:.6g}, allowed {finding.allowed:.6g}")
    for warning in finding.warnings:
        click.echo(f"  warning      {describe_reason(warning)}")
    if finding.status in FAILURES:
        return 1
    return 0 if finding.status == "passed" else 3


def _describe_other_operator(session: Session, case: str, implementation: str) -> click.UsageError:
    computed, asked = session.declared[implementation].operator, CaseId.parse(case).operator
    return click.UsageError(f"IMPLEMENTATION must compute {asked}, the operator of CASE, got {computed}")


def _write_script(
    session: Session, case: str, implementation: str, output: Path | None, unshown: tuple[str, ...]
) -> int:
    """Print the case as a program, or write the program to ``output`` and its tensors beside it.

    ``unshown`` has the checks that the user asked about, but that the program cannot show.
    """
    load = write_import_lines(implementation)
    with session.workers.get([implementation]) as worker:
        if worker.operator != CaseId.parse(case).operator:
            raise _describe_other_operator(session, case, implementation)
        declaration = worker.ask(Describe(implementation=implementation, case=case))
        form = worker.ask(FindForm(implementation=implementation))
    if not isinstance(declaration, Declaration):
        raise click.UsageError(f"--script: {describe_facts(declaration.facts)}")
    if declaration.unsupported:
        raise click.UsageError(f"--script: {describe_refusal(declaration.unsupported)}")
    if not isinstance(form, Form):
        raise click.UsageError(f"--script: {form.reason if isinstance(form, Fault) else describe_facts(form.facts)}")
    declared = session.declared[implementation]
    subject = Subject(
        name=display_name(implementation),
        load=load,
        form=form,
        policies=declared.policies,
        environment=declared.environment,
        unshown=unshown,
    )
    beside = None if output is None else str(output.resolve().with_suffix(".pt"))
    answer = session.ask_oracle(WriteScript(case=case, subject=subject, beside=beside))
    if isinstance(answer, Fault):
        raise click.UsageError(f"--script: {answer.reason}")
    if unshown:
        click.echo(
            f"this program makes one plain call; it does not show the check {', '.join(unshown)}: run the same command "
            "without --script",
            err=True,
        )
    if output is None:
        click.echo(answer.text, nl=False)
    else:
        output.write_text(answer.text, encoding="utf-8")
    return 0
