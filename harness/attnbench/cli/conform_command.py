"""``attnbench conform``: run the checks on a suite."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from attnbench.analysis.coverage import VERDICT_SUITES
from attnbench.api.jobs import (
    Choice,
    conform_into,
    count_planned,
    load_expectations,
    make_session,
    plan_conformance,
    print_stored_path,
    supplement_plans,
)
from attnbench.api.subjects import choose_implementations, drop_unloadable, find_operators
from attnbench.cli.certifying import print_certificate, refuse_filters, write_certificate
from attnbench.cli.matrix import print_chapters
from attnbench.cli.options import options
from attnbench.cli.recording import INCONCLUSIVE, list_coverage, list_notes, recording, write_json
from attnbench.cli.resuming import ResumableCommand
from attnbench.cli.terminal import print_notes, print_outcome, read_made
from attnbench.report.markdown import render


@click.command("conform", cls=ResumableCommand)
@click.argument("implementations", nargs=-1)
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
def command(implementations: tuple[str, ...], **given: Any) -> int:
    """Check implementations against the reference over a suite of cases.

    Each IMPLEMENTATION is a registered name, package.module:attribute or path/to/file.py:attribute. Without
    IMPLEMENTATION, every registered implementation is checked. Exit code 0: everything passed; 1: a failure;
    2: usage error; 3: no verdict on one of the implementations, because no check ran on it, because too few cases
    were checked, or because its certificate is not conformant.
    """
    if (run := _choose_other_job(given)) is not None:
        return run(implementations, given)
    if unused := [name for name in ("budget", "examples", "seed", "keep_found") if given[name] is not None]:
        raise click.UsageError(f"--{unused[0].replace('_', '-')} needs generated cases: add --suite fuzz")
    choice = Choice.from_options(given)
    chosen = choose_implementations(implementations)
    with make_session(given) as session:
        chosen = drop_unloadable(session, chosen, asked=bool(implementations), keeps=len(chosen) == 1)
        plans = plan_conformance(session, choice, find_operators(session, chosen))
        supplements = supplement_plans(session, choice, chosen, plans, given)
        expectations = load_expectations(session, chosen, plans, choice, supplements)
        cases = [plan.case for plan in plans]
        with recording(
            session, results=given["results"], suite=choice.suite, cases=cases, implementations=chosen,
            resume=given["resume"],
            whole=choice.whole and (choice.suite in VERDICT_SUITES or given["certificate_file"] is not None),
            planned=count_planned(session, chosen, plans, supplements=supplements),
        ) as recorded:  # fmt: skip
            conform_into(recorded, session, chosen, plans, choice, expectations, supplements)
            recorded.exit_code = recorded.choose_exit_code(implementations)
        certificate = None
        if given["certificate_file"]:
            certificate = write_certificate(session, recorded, chosen, plans, choice, given["certificate_file"])
    if given["json_file"]:
        write_json(recorded, given["json_file"])
    runs, summary = read_made([recorded])
    if given["markdown_file"]:
        given["markdown_file"].write(render(summary))
    files = (given[f"{kind}_file"] for kind in ("json", "markdown", "certificate"))
    to_stderr = any(file is not None and file.name == "-" for file in files)
    if given["matrix"]:
        print_chapters(recorded.list_results(), err=to_stderr)
        print_notes(list_coverage(recorded), err=to_stderr)
    print_notes(list_notes(recorded), err=to_stderr)
    print_outcome(summary, runs, err=to_stderr)
    print_certificate(certificate, err=to_stderr)
    print_stored_path(recorded)
    sys.stdout.flush()
    return _choose_exit_code(recorded.exit_code, certificate)


def _choose_exit_code(of_the_checks: int, certificate: Mapping[str, Any] | None) -> int:
    """Return the exit code: a certificate that is not conformant turns success into ``INCONCLUSIVE``."""
    doubted = certificate is not None and not certificate["conformant"]
    return of_the_checks or (INCONCLUSIVE if doubted else 0)


def _choose_other_job(given: Mapping[str, Any]) -> Callable[[tuple[str, ...], dict[str, Any]], int] | None:
    """Return what the options ask for in place of a suite: mutants or generated cases; None: a suite."""
    if given["certificate_file"]:
        refuse_filters(given)
    if given["operators"] and not given["mutants"]:
        raise click.UsageError("--operator selects the operator of the mutants, and needs --mutants: add --mutants")
    if given["mutants"] and given["suite"] != "fuzz":
        from attnbench.cli.mutants import try_mutants

        return try_mutants
    if given["suite"] == "fuzz":
        # Imported here: Hypothesis is slow to import.
        from attnbench.cli.fuzzing import fuzz_all

        return fuzz_all
    return None
