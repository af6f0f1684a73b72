"""``attnbench profile``: speed and memory across sequence lengths."""

from functools import partial
from typing import Any

import click

from attnbench.api.jobs import print_stored_path
from attnbench.api.profile_job import record_profile
from attnbench.cli.options import AXES, options
from attnbench.cli.recording import Recording, recording, write_json
from attnbench.cli.resuming import ResumableCommand
from attnbench.cli.terminal import print_outcome, read_made
from attnbench.cli.threads import choose_exit_code, measure_each


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
    made = measure_each(given, partial(_profile, implementations))
    to_stderr = given["json_file"] is not None and given["json_file"].name == "-"
    runs, summary = read_made(made)
    print_outcome(summary, runs, err=to_stderr)
    return choose_exit_code([one.exit_code for one in made])


def _profile(implementations: tuple[str, ...], given: dict[str, Any]) -> Recording:
    """Profile with one number of threads; return the stored run."""
    recorded = record_profile(implementations, given, start_recording=recording)
    if given["json_file"]:
        write_json(recorded, given["json_file"])
    print_stored_path(recorded)
    return recorded
