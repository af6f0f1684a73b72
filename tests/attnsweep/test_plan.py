"""Tests of the plan of a sweep: how cases are packed into tasks, and how the plan is stored."""

from pathlib import Path

import pytest

from attnsweep.configuration import ConfigurationError
from attnsweep.plan import pack, read_plan, write_plan
from sweep_folders import case_of, make_plan


def test_tasks_are_about_equally_long() -> None:
    """The longest case comes first, to the task that has least to do; each task keeps the order of its cases."""
    estimates = {"a": 10.0, "b": 50.0, "c": 40.0, "d": 20.0}
    tasks = pack(estimates, machine="any", minutes=2, most=None, start_s=0.0)
    assert [(task.name, task.cases, task.estimate_s) for task in tasks] == [
        ("any/0001", ("a", "b"), 60.0), ("any/0002", ("c", "d"), 60.0),
    ]  # fmt: skip


def test_tasks_fill_half_of_the_limit() -> None:
    """A task that takes twice as long as estimated still ends in time; its start counts."""
    estimates = {str(number): 10.0 for number in range(12)}
    assert len(pack(estimates, machine="any", minutes=2, most=None, start_s=0.0)) == 2
    assert len(pack(estimates, machine="any", minutes=2, most=None, start_s=20.0)) == 3


def test_a_long_case_has_a_task_of_its_own() -> None:
    """A case beyond the limit is planned nevertheless, and alone."""
    tasks = pack({"long": 1000.0, "short": 1.0}, machine="any", minutes=1, most=None, start_s=0.0)
    assert ("long",) in [task.cases for task in tasks]


def test_the_number_of_cases_is_limited() -> None:
    """No task has more cases than allowed."""
    tasks = pack({str(number): 1.0 + number for number in range(7)}, machine="any", minutes=60, most=3, start_s=0.0)
    assert len(tasks) == 3
    assert max(len(task.cases) for task in tasks) <= 3
    assert sorted(case for task in tasks for case in task.cases) == [str(number) for number in range(7)]


def test_no_case_makes_no_task() -> None:
    """Without cases there are no tasks."""
    assert pack({}, machine="any", minutes=60, most=None, start_s=0.0) == []


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    """The stored plan has the same hash; a changed plan has another one."""
    plan = make_plan([4, 8], [16])
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    assert read_plan(tmp_path).hash == plan.hash != make_plan([4, 8]).hash
    assert plan.count_results() == 6
    assert plan.list_implementations(case_of(4)) == ["torch_mha", "sdpa"]


def test_a_second_sweep_needs_another_folder(tmp_path: Path) -> None:
    """A folder has one plan, which is never replaced."""
    write_plan(tmp_path, make_plan([4]))
    with pytest.raises(ConfigurationError, match="has a sweep already: continue it with --resume"):
        write_plan(tmp_path, make_plan([4]))


def test_a_folder_without_plan_is_refused(tmp_path: Path) -> None:
    """Status and resume need a sweep."""
    with pytest.raises(ConfigurationError, match=r"has no sweep: plan\.json: No such file or directory"):
        read_plan(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="is not the plan of a sweep"):
        read_plan(tmp_path)
