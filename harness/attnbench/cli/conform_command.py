"""``attnbench conform``: run the checks on a suite."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import click

from attnbench.analysis.coverage import VERDICT_SUITES
from attnbench.api.conventions import announce_conventions
from attnbench.api.execution import conform_into, count_planned, make_session, plan_checks, plan_conformance
from attnbench.api.selection import (
    choose_implementations,
    drop_unloadable,
    find_operators,
)
from attnbench.cli.certifying import print_certificate, refuse_filters, write_certificate
from attnbench.cli.job_options import build_job
from attnbench.cli.matrix import print_chapters
from attnbench.cli.options import complete_names, options
from attnbench.cli.output_files import OutputFiles
from attnbench.cli.recording import (
    INCONCLUSIVE,
    list_coverage,
    list_notes,
    print_stored_path,
    recording,
    write_json,
)
from attnbench.cli.terminal import print_notes, print_outcome, read_made
from attnbench.jobs.fields import FUZZ
from attnbench.jobs.job import ConformJob
from attnbench.records.run_file import StoredRun
from attnbench.report.markdown import render


@click.command("conform")
@click.argument("implementations", nargs=-1, shell_complete=complete_names)
@options(
    "suite_or_fuzz", "case", "check", "device", "dtype", "shard", "expected", "timeout", "memory_limit", "work_limit"
)
@options(
    "threads",
    "results",
    "resume",
    "json",
    "markdown",
    "certificate",
    "mutants",
    "mutants_of",
    "matrix",
    "budget",
    "examples",
    "seed",
    "keep_found",
    "no_completion",
    "no_cache",
)
def command(
    *,
    resume: str | None,
    json_file: IO[str] | None,
    markdown_file: IO[str] | None,
    certificate_file: IO[str] | None,
    keep_found: Path | None,
    mutants: bool,
    matrix: bool,
    operators: tuple[str, ...],
    **raw: Any,
) -> int:
    """Check implementations against the reference over a suite of cases.

    Each IMPLEMENTATION is a registered name, package.module:attribute or path/to/file.py:attribute. Without
    IMPLEMENTATION, every registered implementation is checked. Exit code 0: everything passed; 1: a failure;
    2: usage error; 3: no verdict on one of the implementations, because no check ran on it, because too few cases
    were checked, or because its certificate is not conformant.
    """
    if operators and not mutants:
        raise click.UsageError("--operator selects the operator of the mutants, and needs --mutants: add --mutants")
    files = OutputFiles(json_file=json_file, markdown_file=markdown_file, certificate_file=certificate_file)
    others = {"--markdown": markdown_file, "--certificate": certificate_file, "--resume": resume}
    if mutants and (unused := [option for option, value in others.items() if value]):
        raise click.UsageError(f"--mutants: leave out {', '.join(unused)}; --json stores the results")
    job, resumed = build_job(ConformJob, raw, resume)
    if certificate_file:
        refuse_filters(job)
    if mutants and job.suite != FUZZ:
        from attnbench.cli.mutants import try_mutants

        return try_mutants(job, operators, files, whole=matrix)
    if job.suite == FUZZ:
        # Imported here: Hypothesis is slow to import.
        from attnbench.cli.fuzzing import fuzz_all

        return fuzz_all(job, resumed, files, keep_found)
    if keep_found:
        raise click.UsageError("--keep-found needs generated cases: add --suite fuzz")
    return _check(job, resumed, files, matrix=matrix)


def _check(job: ConformJob, resumed: StoredRun | None, files: OutputFiles, *, matrix: bool) -> int:
    """Check the cases of a suite, print and store the findings, and return the exit code."""
    chosen = choose_implementations(job.implementations)
    with make_session(job) as session:
        chosen = drop_unloadable(session, chosen, asked=bool(job.implementations), keeps=len(chosen) == 1)
        plans = plan_conformance(session, job, find_operators(session, chosen))
        checks = plan_checks(session, job, chosen, plans, resumed=resumed)
        with recording(
            session, job=job, resumed=resumed, suite=job.suite, cases=[plan.case for plan in plans],
            implementations=chosen,
            whole=job.whole and (job.suite in VERDICT_SUITES or files.certificate_file is not None),
            planned=count_planned(session, chosen, checks),
        ) as recorded:  # fmt: skip
            if resumed is None:
                announce_conventions(session, chosen)
            conform_into(recorded, session, chosen, checks, job.suite)
            recorded.exit_code = recorded.choose_exit_code(job.implementations)
        certificate = None
        if files.certificate_file:
            certificate = write_certificate(session, recorded, chosen, plans, job, files.certificate_file)
    if files.json_file:
        write_json(recorded, files.json_file)
    runs, summary = read_made([recorded])
    if files.markdown_file:
        files.markdown_file.write(render(summary))
    if matrix:
        print_chapters(recorded.list_results(), err=files.to_stderr)
        print_notes(list_coverage(recorded), err=files.to_stderr)
    print_notes(list_notes(recorded), err=files.to_stderr)
    print_outcome(summary, runs, err=files.to_stderr)
    print_certificate(certificate, err=files.to_stderr)
    print_stored_path(recorded)
    sys.stdout.flush()
    return _choose_exit_code(recorded.exit_code, certificate)


def _choose_exit_code(of_the_checks: int, certificate: Mapping[str, Any] | None) -> int:
    """Return the exit code: a certificate that is not conformant turns success into ``INCONCLUSIVE``."""
    doubted = certificate is not None and not certificate["conformant"]
    return of_the_checks or (INCONCLUSIVE if doubted else 0)
