"""Jobs in run files."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from attnbench.cli import attnbench as command
from attnbench.jobs.errors import JobError
from attnbench.jobs.job import ProfileJob
from attnbench.jobs.stored import read_job
from attnbench.records.run_file import read_run

DATA = Path(__file__).parents[1] / "data"
EXAMPLES = Path(__file__).parents[2] / "results" / "example"


def test_a_run_of_a_newer_job_is_reported(tmp_path: Path) -> None:
    """A report needs nothing of a job: its page, and the terminal, show a run whose job has an unknown option."""
    first, *further = (DATA / "run-schema-7.jsonl").read_text().splitlines()
    run = json.loads(first) | {"schema": 8, "job": {"command": "profile", "options": {"pace": 1, "lengths": {}}}}
    file = tmp_path / "run.jsonl"
    file.write_text("\n".join((json.dumps(run), *further)) + "\n")
    with pytest.raises(JobError, match=r"^this version of attnbench profile does not know 'pace': upgrade attnbench$"):
        read_job(read_run(file).run)
    done = CliRunner().invoke(command, ["report", str(file), "--reports", str(tmp_path)], standalone_mode=False)
    assert done.exception is None, done.output
    page = Path(done.stdout.splitlines()[-1])
    assert "torch_mha" in page.read_text()


@pytest.mark.parametrize("version", range(1, 8))
def test_a_run_before_jobs_has_the_job_of_its_command_line(version: int) -> None:
    """A run of an older schema has only a command line, which is read as the same job."""
    run = read_run(DATA / f"run-schema-{version}.jsonl").run
    job = read_job(run)
    assert f"attnbench {job.command}" in run.command
    if isinstance(job, ProfileJob):
        assert job.suite == "quick"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_jobs_of_the_example_are_read(path: Path) -> None:
    """The stored job and the stored command line are the same job."""
    run = read_run(path).run
    job = read_job(run)
    assert isinstance(job, ProfileJob)
    assert job.command == run.job.command
