"""Tests of what a job runs."""

from pathlib import Path

import pytest

from attnsweep.task import TaskJob, find_differences
from attnsweep.tries import list_tries
from sweep_folders import make_try, write_run, write_sweep


def test_other_versions_end_a_task(tmp_path: Path) -> None:
    """A node with another torch than the plan runs no case; the record of the try says why."""
    plan = write_sweep(tmp_path, [4], versions={"torch": "1.0"})
    with pytest.raises(ValueError, match=r"instead of 1\.0; install the same, or set allow_different_versions"):
        TaskJob(folder=str(tmp_path), machine="any", number=1)()
    (made,) = list_tries(tmp_path, plan.tasks[0])
    assert (made.outcome, made.reason.partition(" instead")[2]) == (
        "failed", " of 1.0; install the same, or set allow_different_versions",
    )  # fmt: skip


def test_a_finished_task_runs_no_case(tmp_path: Path) -> None:
    """A try of a task whose earlier tries have every result ends at once, without a run file."""
    plan = write_sweep(tmp_path, [4, 8])
    (task,) = plan.tasks
    write_run(make_try(tmp_path, plan, task, "preempted"), [4, 8])
    assert TaskJob(folder=str(tmp_path), machine="any", number=1)() == "done"
    assert [one.outcome for one in list_tries(tmp_path, task)] == ["preempted", "done"]
    assert not (tmp_path / "tasks" / "any" / "0001-try2.jsonl").exists()


@pytest.mark.parametrize(("minutes", "outcome"), [(60, "preempted"), (0, "timed out")])
def test_a_checkpoint_stores_why_the_try_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int, outcome: str
) -> None:
    """A try that is ended from outside before its time was preempted; its call is made once more."""
    plan = write_sweep(tmp_path, [4], minutes=minutes)
    job = TaskJob(folder=str(tmp_path), machine="any", number=1)
    again = []

    def end_from_outside(*_: object) -> None:
        again.append(job.checkpoint().function)
        raise SystemExit(1)

    monkeypatch.setattr("attnsweep.task.run_task", end_from_outside)
    with pytest.raises(SystemExit):
        job()
    assert [one.outcome for one in list_tries(tmp_path, plan.tasks[0])] == [outcome]
    assert again == [TaskJob(folder=str(tmp_path), machine="any", number=1)]


def test_differences_are_named() -> None:
    """Only libraries of the plan are compared."""
    assert find_differences({"torch": "2.13.0"}, {"torch": "2.13.0", "other": "1"}) == ""
    assert find_differences({"torch": "2.13.0"}, {}) == "torch not installed instead of 2.13.0"
