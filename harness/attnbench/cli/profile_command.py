"""``attnbench profile``: speed and memory across sequence lengths."""

from functools import partial
from typing import IO, Any

import click

from attnbench.api.execution import record_profile
from attnbench.cli.job_options import build_jobs
from attnbench.cli.options import AXES, complete_names, options
from attnbench.cli.output_files import OutputFiles
from attnbench.cli.recording import Recording, print_stored_path, recording, write_json
from attnbench.cli.terminal import print_outcome, read_made
from attnbench.cli.threads import choose_exit_code, measure_each
from attnbench.jobs.job import ProfileJob
from attnbench.records.run_file import StoredRun


@click.command("profile")
@click.argument("implementations", nargs=-1, shell_complete=complete_names)
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
def command(*, resume: str | None, json_file: IO[str] | None, **raw: Any) -> int:
    """Measure speed and memory of conforming implementations across sequence lengths.

    The reference is part of every profile, because each time is reported as a ratio to the reference's time. --suite
    sets the measuring effort. If --case is a complete case id, this case is timed, whatever its form: for example a
    decoding step, shared heads or a window.
    """
    files = OutputFiles(json_file=json_file)
    jobs = build_jobs(ProfileJob, raw, resume)
    if jobs[0][0].frontier:
        from attnbench.cli.max_length import search_max_lengths

        return choose_exit_code(measure_each(jobs, partial(search_max_lengths, files=files)))
    made = measure_each(jobs, partial(_profile, files=files))
    runs, summary = read_made(made)
    print_outcome(summary, runs, err=files.to_stderr)
    return choose_exit_code([one.exit_code for one in made])


def _profile(job: ProfileJob, resumed: StoredRun | None, files: OutputFiles) -> Recording:
    """Profile with one number of threads; return the stored run."""
    recorded = record_profile(
        job, start_recording=partial(recording, resumed=resumed), announce=partial(click.echo, err=True)
    )
    if files.json_file:
        write_json(recorded, files.json_file)
    print_stored_path(recorded)
    return recorded
