"""``attnbench conform --certificate``: write the certificate of a run."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import IO, Any

import click
from msgspec import to_builtins

from attnbench.analysis.certificate import Declaration, Suite, make_certificate
from attnbench.analysis.invariance import find_measured
from attnbench.api.selection import find_operators, list_suite
from attnbench.cases import digest
from attnbench.cli.judged_code import describe_code
from attnbench.cli.recording import Recording
from attnbench.jobs.fields import FUZZ, name_option
from attnbench.jobs.job import ConformJob
from attnbench.plugins.registry import display_name, load_operator
from attnbench.processes.oracle_requests import GetListVersion
from attnbench.records.run_file import read_runs_of
from attnbench.records.types import INVARIANCE
from attnbench.runner import Plan, Session
from attnbench.words.certificates import describe_certificate, spell_certificate

__all__ = ["print_certificate", "refuse_filters", "write_certificate"]


def refuse_filters(job: ConformJob) -> None:
    """Refuse, before anything is run, a job that does not fit a certificate of a whole suite.

    Raises: click.UsageError for --suite fuzz and for a part of a suite.
    """
    if job.suite == FUZZ:
        raise click.UsageError("--certificate needs a fixed suite, got fuzz: name another suite with --suite")
    if job.filters:
        raise click.UsageError(
            f"--certificate needs a whole suite: leave out {', '.join(map(name_option, job.filters))}"
        )


def write_certificate(
    session: Session,
    recorded: Recording,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    job: ConformJob,
    file: IO[str],
) -> dict[str, Any]:
    """Write the certificate of a complete run to ``file``, as JSON, and return it.

    Raises: CertificateError if the run lacks results of a case.
    """
    operators = find_operators(session, implementations)
    listed = list_suite(session, job, operators)
    list_hash = digest(listed)
    suite = Suite(
        level=job.suite,
        list_versions={operator: session.ask_oracle(GetListVersion(operator=operator)) for operator in operators},
        list_hash=list_hash,
        cases=len(listed),
        mutation_score=_read_scores(operators).get(list_hash),
    )
    declared = {
        display_name(name): Declaration(
            operator=session.declared[name].operator,
            source=session.declared[name].source,
            policies=to_builtins(session.declared[name].policies),
            code=describe_code(name, session.declared[name].sources),
        )
        for name in implementations
    }
    certificate = make_certificate(
        recorded.run,
        suite,
        [plan.case for plan in plans],
        declared,
        recorded.results.values(),
        without_data={plan.case: plan.missing for plan in plans if plan.missing and plan.lacks_data},
        completions=recorded.completions,
        invariance=find_measured(recorded.run, read_runs_of(job.results, INVARIANCE)),
    )
    made = spell_certificate(certificate)
    file.write(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    return made


def print_certificate(certificate: Mapping[str, Any] | None, *, err: bool) -> None:
    """Print which implementations a certificate certifies, on how many cases, and its doubts about the others."""
    for line in describe_certificate(certificate) if certificate else ():
        click.echo(line, err=err)


def _read_scores(operators: Sequence[str]) -> dict[str, Any]:
    """Return the stored mutation scores of these operators; each key is the hash of a case list.

    A mutation score is the fraction of mutants (wrong implementations) that the checks catch on
    the case list. ``attnbench conform --mutants --json`` writes the files that are read here.
    """
    found: dict[str, Any] = {}
    for operator in operators:
        package, _, file = load_operator(operator).mutation_scores.partition(":")
        if file:
            found |= json.loads(files(package).joinpath(file).read_text(encoding="utf-8"))["scores"]
    return found
