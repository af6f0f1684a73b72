"""``attnbench run``: conform, profile and report."""

from functools import partial
from typing import IO, Any

import click

from attnbench.analysis.coverage import VERDICT_SUITES
from attnbench.api.before_timing import describe_timing
from attnbench.api.conventions import announce_conventions
from attnbench.api.execution import (
    EFFORTS,
    choose_effort,
    conform_into,
    count_planned,
    make_session,
    plan_checks,
    plan_conformance,
    plan_profile,
    profile_with_ceilings,
)
from attnbench.api.selection import (
    choose_implementations,
    choose_timed_implementations,
    find_operators,
)
from attnbench.cli.job_options import build_jobs
from attnbench.cli.options import AXES, complete_names, options
from attnbench.cli.output_files import OutputFiles
from attnbench.cli.recording import Recording, list_notes, print_stored_path, recording, write_json
from attnbench.cli.terminal import print_notes, print_outcome
from attnbench.cli.threads import choose_exit_code, measure_each
from attnbench.jobs.job import RunJob
from attnbench.records.run_file import StoredRun


@click.command("run")
@click.argument("implementations", nargs=-1, shell_complete=complete_names)
@options("suite", "operator", "lengths", "passes", "device", "dtype", "shard", "expected", "processes")
@options("thread_counts", *AXES)
@options("timeout", "memory_limit", "work_limit", "case_budget", "results", "reports", "resume", "json")
@options("no_completion", "no_cache")
def command(*, resume: str | None, json_file: IO[str] | None, **raw: Any) -> int:
    """Run conform and profile on the same implementations, then report.

    The last lines of output are the table of the implementations and what to use; the very last one is the path of the
    report's page.
    """
    from attnbench.records.run_file import read_run
    from attnbench.report import collect, load, write_content

    load()
    files = OutputFiles(json_file=json_file)
    jobs = build_jobs(RunJob, raw, resume)
    made = measure_each(jobs, partial(_run, files=files))
    content = collect([read_run(one.file.path) for one in made])
    reports = jobs[0][0].reports
    page = write_content(content, reports)
    print_outcome(content.summary, content.runs, reports=reports, err=files.to_stderr)
    click.echo(page, err=files.to_stderr)
    return choose_exit_code([one.exit_code for one in made])


def _run(job: RunJob, resumed: StoredRun | None, files: OutputFiles) -> Recording:
    """Conform and profile with one number of threads; return the stored run."""
    checked = job.conformance
    chosen = choose_implementations(job.implementations)
    with make_session(job) as session:
        chosen = choose_timed_implementations(
            session, chosen, asked=bool(job.implementations), operators=job.operators,
            compiling=job.suite != "quick", keeps=True,
        )  # fmt: skip
        operators = find_operators(session, chosen)
        plans = plan_conformance(session, checked, operators)
        timed = plan_profile(session, job, operators)
        checks = plan_checks(session, checked, chosen, plans, resumed=resumed)
        effort = choose_effort(EFFORTS[job.suite], job)
        click.echo(describe_timing(session, chosen, timed, effort, job, besides="the checks of the suite"), err=True)
        with recording(
            session, job=job, resumed=resumed, suite=job.suite, cases=[plan.case for plan in plans + timed],
            implementations=chosen, whole=checked.whole and job.suite in VERDICT_SUITES,
            planned=count_planned(session, chosen, checks, timed, effort=effort),
        ) as recorded:  # fmt: skip
            if resumed is None:
                announce_conventions(session, chosen)
            conform_into(recorded, session, chosen, checks, job.suite)
            profile_with_ceilings(recorded, session, chosen, timed, effort)
            recorded.exit_code = recorded.choose_exit_code(job.implementations)
    if files.json_file:
        write_json(recorded, files.json_file)
    print_notes(list_notes(recorded), err=files.to_stderr)
    print_stored_path(recorded)
    return recorded
