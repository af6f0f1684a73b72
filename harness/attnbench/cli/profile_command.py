"""``attnbench profile``: speed and memory across sequence lengths."""

from functools import partial
from typing import Any

import click

from attnbench.cli.axes import Axes
from attnbench.cli.before_timing import announce
from attnbench.cli.jobs import (
    Choice,
    choose_effort,
    count_planned,
    make_session,
    plan_profile,
    print_stored_path,
    profile_with_ceilings,
)
from attnbench.cli.options import AXES, EFFORTS, LENGTHS, QUICK_LENGTHS, options
from attnbench.cli.recording import recording, write_json
from attnbench.cli.resuming import ResumableCommand
from attnbench.cli.selection import choose_implementations, choose_timed_implementations, find_operators
from attnbench.cli.terminal import print_timings
from attnbench.cli.threads import choose_exit_code, measure_each
from attnbench.records.types import PERF


@click.command("profile", cls=ResumableCommand)
@click.argument("implementations", nargs=-1)
@options(
    "suite",
    "operator",
    "lengths",
    "passes",
    "device",
    "dtype",
    "processes",
    "thread_counts",
    "shard",
    "timeout",
    "memory_limit",
)
@options(*AXES)
@options("work_limit", "case_budget", "case", "results", "resume", "json", "frontier", "no_cache")
def command(implementations: tuple[str, ...], **given: Any) -> int:
    """Measure speed and memory of conforming implementations across sequence lengths.

    The reference is part of every profile, because each time is reported as a ratio to the reference's time. --suite
    sets the measuring effort. If --case is a complete case id, this case is timed, whatever its form: for example a
    decoding step, shared heads or a window.
    """
    if given["frontier"]:
        from attnbench.cli.max_length import search_max_lengths

        return choose_exit_code(measure_each(given, partial(search_max_lengths, implementations)))
    return choose_exit_code(measure_each(given, partial(_profile, implementations)))


def _profile(implementations: tuple[str, ...], given: dict[str, Any]) -> int:
    """Profile with one number of threads; return the exit code."""
    choice = Choice.from_options(given)
    chosen = choose_implementations(implementations)
    axes = Axes.from_options(given, lengths=QUICK_LENGTHS if given["suite"] == "quick" else LENGTHS)
    with make_session(given) as session:
        chosen = choose_timed_implementations(
            session, chosen, asked=bool(implementations), operators=given["operators"]
        )
        operators = find_operators(session, chosen)
        plans = plan_profile(session, choice, operators, axes=axes, passes=given["passes"])
        announce(session, chosen, plans, choose_effort(EFFORTS[given["suite"]], given), axes)
        with recording(
            session, results=given["results"], suite=PERF, cases=[plan.case for plan in plans],
            implementations=chosen, resume=given["resume"], planned=count_planned(session, chosen, timed=plans),
        ) as recorded:  # fmt: skip
            profile_with_ceilings(recorded, session, chosen, plans, given)
            recorded.exit_code = recorded.choose_exit_code(implementations)
    if given["json_file"]:
        write_json(recorded, given["json_file"])
    print_timings(recorded.list_results(), err=given["json_file"] is not None and given["json_file"].name == "-")
    print_stored_path(recorded)
    return recorded.exit_code
