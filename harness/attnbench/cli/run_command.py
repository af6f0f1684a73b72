"""``attnbench run``: conform, profile and report."""

from functools import partial
from typing import Any

import click

from attnbench.analysis.coverage import VERDICT_SUITES
from attnbench.api.axes import Axes
from attnbench.api.before_timing import announce
from attnbench.api.defaults import EFFORTS, LENGTHS, QUICK_LENGTHS
from attnbench.api.jobs import (
    Choice,
    choose_effort,
    conform_into,
    count_planned,
    load_expectations,
    make_session,
    plan_conformance,
    plan_profile,
    print_stored_path,
    profile_with_ceilings,
    supplement_plans,
)
from attnbench.api.subjects import choose_implementations, choose_timed_implementations, find_operators
from attnbench.cli.options import AXES, options
from attnbench.cli.recording import Recording, list_notes, recording, write_json
from attnbench.cli.resuming import ResumableCommand
from attnbench.cli.terminal import print_notes, print_outcome
from attnbench.cli.threads import choose_exit_code, measure_each


@click.command("run", cls=ResumableCommand)
@click.argument("implementations", nargs=-1)
@options("suite", "operator", "lengths", "passes", "device", "dtype", "shard", "expected", "processes")
@options("thread_counts", *AXES)
@options("timeout", "memory_limit", "work_limit", "case_budget", "results", "reports", "resume", "json")
@options("no_completion", "no_cache")
def command(implementations: tuple[str, ...], **given: Any) -> int:
    """Run conform and profile on the same implementations, then report.

    The last lines of output are the table of the implementations and what to use; the very last one is the path of the
    report's page.
    """
    from attnbench.records.run_file import read_run
    from attnbench.report import collect, write_content

    made = measure_each(given, partial(_run, implementations))
    to_stderr = given["json_file"] is not None and given["json_file"].name == "-"
    content = collect([read_run(one.file.path) for one in made])
    page = write_content(content, given["reports"])
    print_outcome(content.summary, content.runs, reports=given["reports"], err=to_stderr)
    click.echo(page, err=to_stderr)
    return choose_exit_code([one.exit_code for one in made])


def _run(implementations: tuple[str, ...], given: dict[str, Any]) -> Recording:
    """Conform and profile with one number of threads; return the stored run."""
    choice = Choice.from_options(given)
    axes = Axes.from_options(given, lengths=QUICK_LENGTHS if choice.suite == "quick" else LENGTHS)
    chosen = choose_implementations(implementations)
    with make_session(given) as session:
        chosen = choose_timed_implementations(
            session, chosen, asked=bool(implementations), operators=given["operators"],
            compiling=choice.suite != "quick", keeps=True,
        )  # fmt: skip
        operators = find_operators(session, chosen)
        plans = plan_conformance(session, choice, operators)
        timed = plan_profile(session, choice, operators, axes=axes, passes=given["passes"])
        supplements = supplement_plans(session, choice, chosen, plans, given)
        expectations = load_expectations(session, chosen, plans, choice, supplements)
        effort = choose_effort(EFFORTS[given["suite"]], given)
        announce(session, chosen, timed, effort, axes, besides="the checks of the suite")
        with recording(
            session, results=given["results"], suite=choice.suite, cases=[plan.case for plan in plans + timed],
            implementations=chosen, resume=given["resume"],
            whole=choice.whole and choice.suite in VERDICT_SUITES,
            planned=count_planned(session, chosen, plans, timed, supplements, effort=effort),
        ) as recorded:  # fmt: skip
            conform_into(recorded, session, chosen, plans, choice, expectations, supplements)
            profile_with_ceilings(recorded, session, chosen, timed, given)
            recorded.exit_code = recorded.choose_exit_code(implementations)
    if given["json_file"]:
        write_json(recorded, given["json_file"])
    to_stderr = given["json_file"] is not None and given["json_file"].name == "-"
    print_notes(list_notes(recorded), err=to_stderr)
    print_stored_path(recorded)
    return recorded
