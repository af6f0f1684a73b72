"""``attnbench profile``: speed and memory across sequence lengths."""

from typing import Any

import click

from attnbench.cli.jobs import Choice, profile_plans, profile_with_ceilings, say_stored, session_for
from attnbench.cli.options import LENGTHS, QUICK_LENGTHS, options
from attnbench.cli.recording import recording, write_json
from attnbench.cli.selection import chosen_implementations, operators_of, taking_part
from attnbench.cli.terminal import print_timings
from attnbench.records.types import PERF


@click.command("profile")
@click.argument("implementations", nargs=-1)
@options(
    "suite",
    "operator",
    "lengths",
    "passes",
    "device",
    "dtype",
    "processes",
    "threads",
    "shard",
    "timeout",
    "memory_limit",
)
@options("work_limit", "case_budget", "case", "results", "resume", "json", "frontier")
def command(implementations: tuple[str, ...], **given: Any) -> int:
    """Speed and memory across sequence lengths, of what conforms on the very cases that are timed.

    The reference takes part in every profile, so that each time has its ratio. --suite sets how long is measured.
    A whole id as --case times that very case, of whatever form: a decoding step, shared heads, a window.
    """
    if given["frontier"]:
        from attnbench.cli.max_length import search_frontiers

        return search_frontiers(implementations, given)
    choice = Choice.of(given)
    chosen = chosen_implementations(implementations)
    lengths = given["lengths"] or (QUICK_LENGTHS if given["suite"] == "quick" else LENGTHS)
    with session_for(given) as session:
        chosen = taking_part(session, chosen, asked=bool(implementations), operators=given["operators"])
        operators = operators_of(session, chosen)
        plans = profile_plans(session, choice, operators, lengths=lengths, passes=given["passes"])
        with recording(
            session, results=given["results"], suite=PERF, cases=[plan.case for plan in plans],
            implementations=chosen, resume=given["resume"],
        ) as recorded:  # fmt: skip
            profile_with_ceilings(recorded, session, chosen, plans, given)
    if given["json_file"]:
        write_json(recorded, given["json_file"])
    print_timings(recorded.told(), err=given["json_file"] is not None and given["json_file"].name == "-")
    say_stored(recorded)
    return recorded.exit_code(implementations)
