"""Tests of the states of tasks: they follow from result files first, and from jobs only where results are missing."""

import os
from pathlib import Path

import msgspec
import pytest

from attnsweep import states, submission
from attnsweep.configuration import ConfigurationError
from attnsweep.plan import allow_tries, read_plan
from attnsweep.progress import format_counts, format_resuming, list_gaps
from attnsweep.slurm import SlurmError
from attnsweep.states import StateReader
from attnsweep.submission import Submission
from attnsweep.tries import Outcome, Try, end_try
from sweep_folders import make_try, write_run, write_sweep


def submit(folder: Path, task: str, job: str) -> None:
    """Store that a task was given to Slurm."""
    submission._store(folder, [Submission(task=task, job=job, executor="slurm")])


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the states of jobs that Slurm answers with."""
    jobs: dict[str, str] = {}
    monkeypatch.setattr(states, "find_job_states", lambda asked: {job: jobs[job] for job in asked if job in jobs})
    monkeypatch.setattr(states, "find_cancelled", lambda asked: set())
    return jobs


def test_a_task_with_every_result_is_done(tmp_path: Path, queue: dict[str, str]) -> None:
    """The run file decides, even if the job was killed afterwards; a job that runs has still to end its run file."""
    plan = write_sweep(tmp_path, [4, 8])
    write_run(make_try(tmp_path, plan, plan.tasks[0], None, job="1"), [4, 8])
    submit(tmp_path, "any/0001", "1")
    queue["1"] = "RUNNING"
    (found,) = StateReader(tmp_path, plan).read()
    assert (found.state, found.results.complete) == ("running", 4)
    del queue["1"]
    assert StateReader(tmp_path, plan).read()[0].state == "done"
    make_try(tmp_path, plan, plan.tasks[0], "done", job="1")
    queue["1"] = "COMPLETING"
    assert StateReader(tmp_path, plan).read()[0].state == "done"


def test_a_finished_sweep_needs_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm is asked only about jobs that have not stored their end."""
    plan = write_sweep(tmp_path, [4], [8])
    asked: list[str] = []
    monkeypatch.setattr(states, "find_job_states", lambda jobs: asked.extend(jobs) or {})
    for number, outcome in enumerate(("done", "preempted")):
        write_run(make_try(tmp_path, plan, plan.tasks[number], outcome, job=f"5_{number}"), [4 + 4 * number])
        submit(tmp_path, plan.tasks[number].name, f"5_{number}")
    assert [one.state for one in StateReader(tmp_path, plan).read()] == ["done", "done"]
    assert asked == ["5_1"]


def test_results_of_several_tries_count_together(tmp_path: Path, queue: dict[str, str]) -> None:
    """A try that goes on where another was ended does only what is left."""
    plan = write_sweep(tmp_path, [4, 8])
    (task,) = plan.tasks
    write_run(make_try(tmp_path, plan, task, "preempted"), [4])
    write_run(make_try(tmp_path, plan, task, "done", count=2), [8])
    assert StateReader(tmp_path, plan).read()[0].state == "done"
    write_run(tmp_path / "tasks" / "any" / "0001-try2.jsonl", [8], names=["sdpa"])
    (found,) = StateReader(tmp_path, plan).read()
    assert found.state == "missing"
    assert found.reason == "3 of 4 results; not submitted"


def test_a_case_of_a_profile_in_two_files_is_not_whole(tmp_path: Path, queue: dict[str, str]) -> None:
    """Its times are of different processes, and cannot be compared."""
    plan = write_sweep(tmp_path, [4], kind="profile")
    (task,) = plan.tasks
    for count, name in enumerate(("sdpa", "torch_mha"), start=1):
        path = make_try(tmp_path, plan, task, "preempted", count=count)
        write_run(path, [4], names=[name], untimed="the work limit was exceeded")
    (found,) = StateReader(tmp_path, plan).read()
    assert found.reason == "0 of 2 results; not submitted"


def test_a_job_in_the_queue_is_not_submitted_again(tmp_path: Path, queue: dict[str, str]) -> None:
    """A task whose last job waits or runs is queued or running, whatever its earlier tries did."""
    plan = write_sweep(tmp_path, [4], [8], [16])
    make_try(tmp_path, plan, plan.tasks[1], "failed", job="17_0")
    for task, job in (("any/0001", "18_0"), ("any/0002", "17_0"), ("any/0002", "18_1"), ("any/0003", "18_2")):
        submit(tmp_path, task, job)
    queue |= {"18_0": "PENDING", "18_1": "RUNNING"}
    found = StateReader(tmp_path, plan).read()
    assert [one.state for one in found] == ["queued", "running", "missing"]
    assert found[2].reason == "0 of 2 results; job 18_2 ended before the task began"
    log = tmp_path / "submitit" / "18_2_0_log.err"
    log.parent.mkdir()
    log.write_text("no such file\n")
    assert StateReader(tmp_path, plan).read()[2].reason.endswith(f"ended before the task began: see {log}")
    assert format_counts(plan, found) == "tasks: 1 queued, 1 running, 0 done, 0 failed, 1 missing; results: 0 of 6"


def test_a_killed_task_is_missing(tmp_path: Path, queue: dict[str, str]) -> None:
    """A task whose node died left no outcome."""
    plan = write_sweep(tmp_path, [4])
    make_try(tmp_path, plan, plan.tasks[0], None, job="9")
    submit(tmp_path, "any/0001", "9")
    (found,) = StateReader(tmp_path, plan).read()
    assert (found.state, found.reason) == ("missing", "0 of 2 results; failed once; try 1 was killed")


@pytest.mark.parametrize("outcome", ["preempted", "timed out", "stopped"])
def test_a_requeued_job_counts_as_queued_for_a_while(
    tmp_path: Path, queue: dict[str, str], monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    """A job that Slurm starts again may be in no queue for a moment; after that, its task is missing."""
    plan = write_sweep(tmp_path, [4])
    path = make_try(tmp_path, plan, plan.tasks[0], None, job="9")
    made = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=Try)
    end_try(tmp_path, plan.tasks[0], made, outcome)
    submit(tmp_path, "any/0001", "9")
    assert [one.state for one in StateReader(tmp_path, plan).read()] == ["queued"]
    monkeypatch.setattr(states, "REQUEUE_S", 0.0)
    assert [one.state for one in StateReader(tmp_path, plan).read()] == ["missing"]


def test_a_cancelled_job_is_not_taken_for_a_requeued_one(
    tmp_path: Path, queue: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm ends both in the same way, but remembers which job was cancelled; its try does not count as failed."""
    plan = write_sweep(tmp_path, [4])
    path = make_try(tmp_path, plan, plan.tasks[0], None, job="9")
    end_try(tmp_path, plan.tasks[0], msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=Try), "stopped")
    submit(tmp_path, "any/0001", "9")
    monkeypatch.setattr(states, "find_cancelled", set)
    (found,) = StateReader(tmp_path, plan).read()
    assert (found.state, found.reason) == ("missing", "0 of 2 results; try 1 stopped")


def test_a_job_that_was_cancelled_while_it_waited_says_so(
    tmp_path: Path, queue: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No try and no log of such a job exist."""
    plan = write_sweep(tmp_path, [4])
    submit(tmp_path, "any/0001", "9_0")
    monkeypatch.setattr(states, "find_cancelled", set)
    (found,) = StateReader(tmp_path, plan).read()
    assert (found.state, found.reason) == ("missing", "0 of 2 results; job 9_0 was cancelled before the task began")


def test_more_tries_are_allowed_later(tmp_path: Path, queue: dict[str, str]) -> None:
    """A task that was given up is missing again under a larger number of tries; its tries are of the same plan."""
    plan = write_sweep(tmp_path, [4], tries=1)
    make_try(tmp_path, plan, plan.tasks[0], "failed")
    assert StateReader(tmp_path, plan).read()[0].state == "failed"
    changed = allow_tries(tmp_path, plan, 2)
    assert read_plan(tmp_path) == changed
    assert StateReader(tmp_path, changed).read()[0].state == "missing"


def test_the_command_that_resumes_is_for_where_the_tasks_ran(tmp_path: Path) -> None:
    """If every task ran here, what is missing runs here as well."""
    write_sweep(tmp_path, [4], [8])
    submission._store(tmp_path, [Submission(task="any/0001", job="77", executor="local")])
    assert format_resuming(tmp_path) == f"attnbench sweep --results {tmp_path} --resume --local"
    submit(tmp_path, "any/0002", "9_0")
    assert format_resuming(tmp_path) == f"attnbench sweep --results {tmp_path} --resume"


def test_without_an_answer_the_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Slurm is not needed, it is asked once, and its jobs count as ended; else its silence is an error."""
    plan = write_sweep(tmp_path, [4])
    submit(tmp_path, "any/0001", "9")
    asked = []

    def be_silent(jobs: object) -> dict[str, str]:
        asked.append(jobs)
        raise SlurmError("Slurm does not answer")

    monkeypatch.setattr(states, "find_job_states", be_silent)
    with pytest.raises(SlurmError):
        StateReader(tmp_path, plan).read()
    reader = StateReader(tmp_path, plan, needs_slurm=False)
    assert [one.state for one in (*reader.read(), *reader.read())] == ["missing", "missing"]
    assert (str(reader.silence), len(asked)) == ("Slurm does not answer", 2)


def test_a_run_file_that_was_cut_is_missing(tmp_path: Path, queue: dict[str, str]) -> None:
    """A task whose try ended well is missing again if its file was cut; the line that was lost is named."""
    plan = write_sweep(tmp_path, [4, 8])
    path = make_try(tmp_path, plan, plan.tasks[0], "done")
    write_run(path, [4, 8])
    submit(tmp_path, "any/0001", "1")
    reader = StateReader(tmp_path, plan)
    assert reader.read()[0].state == "done"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:40])
    found = reader.read()
    assert found[0].state == "missing"
    gaps = list(list_gaps(found))
    assert gaps[0] == (
        "missing: task any/0001: 3 of 4 results; failed once; try 1 ended, but its run file lacks results"
    )
    assert gaps[1].startswith("0001-try1.jsonl line 5 cannot be read and is left out")


def test_three_failed_tries_are_a_result(tmp_path: Path, queue: dict[str, str]) -> None:
    """A task that failed as often as the plan allows is not submitted again; preempted tries do not count."""
    plan = write_sweep(tmp_path, [4])
    (task,) = plan.tasks
    submit(tmp_path, "any/0001", "1")
    for count, outcome in enumerate(("failed", "preempted", "timed out", "interrupted"), start=1):
        make_try(tmp_path, plan, task, outcome, count=count)
    assert StateReader(tmp_path, plan).read()[0].state == "missing"
    make_try(tmp_path, plan, task, "failed", count=5)
    (found,) = StateReader(tmp_path, plan).read()
    assert (found.state, found.reason) == ("failed", "0 of 2 results; failed three times; try 5 failed: it broke")


def test_a_case_of_a_profile_needs_its_times(tmp_path: Path, queue: dict[str, str]) -> None:
    """A profile stores a result before it times the case; a time, or the reason why there is none, completes it."""
    plan = write_sweep(tmp_path, [4], kind="profile")
    path = make_try(tmp_path, plan, plan.tasks[0], "timed out")
    write_run(path, [4])
    (found,) = StateReader(tmp_path, plan).read()
    assert (found.state, found.results.complete) == ("missing", 0)
    write_run(path, [4], untimed="the work limit was exceeded")
    assert StateReader(tmp_path, plan).read()[0].state == "done"


def test_a_try_that_ran_out_of_time_is_no_failure_if_it_finished_a_case(tmp_path: Path, queue: dict[str, str]) -> None:
    """A task whose limit is too short goes on from try to try."""
    plan = write_sweep(tmp_path, [4, 8, 16, 32])
    submit(tmp_path, "any/0001", "1")
    for count, length in enumerate((4, 8, 16), start=1):
        write_run(make_try(tmp_path, plan, plan.tasks[0], "timed out", count=count), [length])
    (found,) = StateReader(tmp_path, plan).read()
    assert (found.state, found.reason) == ("missing", "6 of 8 results; try 3 timed out")


def test_a_local_task_runs_while_its_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of another program with the same id is not the task's."""
    plan = write_sweep(tmp_path, [4])
    submission._store(tmp_path, [Submission(task="any/0001", job=str(os.getpid()), executor="local")])
    assert StateReader(tmp_path, plan).read()[0].state == "missing"
    monkeypatch.setattr(states, "_runs_here", lambda process: process == str(os.getpid()))
    assert StateReader(tmp_path, plan).read()[0].state == "running"


def test_files_of_another_plan_are_refused(tmp_path: Path, queue: dict[str, str]) -> None:
    """Results of another plan in the same folder are not counted silently."""
    plan = write_sweep(tmp_path, [4])
    other = write_sweep(tmp_path / "other", [4], minutes=7)
    make_try(tmp_path, other, plan.tasks[0], "done")
    with pytest.raises(ConfigurationError, match="is of another plan than"):
        StateReader(tmp_path, plan).read()
