"""Tests of --threads with several numbers."""

import click
import pytest

from attnbench.cli.job_options import build_jobs
from attnbench.cli.profile_command import command
from attnbench.cli.threads import choose_exit_code
from attnbench.jobs.command_lines import format_job
from attnbench.jobs.job import ProfileJob


def read(*words: str) -> list[ProfileJob]:
    """Return the jobs of a command line of ``attnbench profile``."""
    with command.make_context("profile", list(words)) as context:
        given = {name: value for name, value in context.params.items() if name not in ("resume", "json_file")}
        return [job for job, _ in build_jobs(ProfileJob, given, context.params["resume"])]


def test_each_number_is_a_job_with_the_other_options() -> None:
    """The jobs have one number each; without --threads, there is one job without a number."""
    assert [(one.threads, one.suite) for one in read("--threads", "1,2", "--suite", "core")] == [
        (1, "core"), (2, "core"),
    ]  # fmt: skip
    assert [one.threads for one in read()] == [None]


@pytest.mark.parametrize("option", ["--json", "--resume"])
def test_one_file_is_not_written_for_several_runs(option: str) -> None:
    """The option that names the file is refused by its name."""
    with pytest.raises(click.UsageError, match=f"^{option}: .*got --threads 1,2"):
        read("--threads", "1,2", option, "file")


def test_the_worst_exit_code_counts() -> None:
    """A failure counts more than a missing verdict, and this more than success."""
    assert [choose_exit_code(codes) for codes in ([0, 0], [0, 3], [3, 1, 0])] == [0, 3, 1]


def test_a_run_stores_its_own_number() -> None:
    """The stored command repeats this run alone, so that it can be resumed."""
    _, two = read("--threads", "1,2", "sdpa")
    assert format_job(two) == "attnbench profile sdpa --threads 2"
