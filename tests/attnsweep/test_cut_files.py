"""Tests of run files of tries that were ended early: what is kept of them can be merged."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from attnbench.api.recording import Recording
from attnbench.records.joined_file import join_parts
from attnbench.records.parts import find_parts, group_parts
from attnbench.records.run_file import RunFile, format_line, read_run
from attnbench.records.types import Planned, StoredJob
from attnsweep.cut_files import keep_counted
from attnsweep.tries import Pair, list_tries
from sweep_folders import case_of, make_try, write_run, write_sweep
from timed_runs import time_calls


def cut(path: Path, lines: int) -> None:
    """Keep only the first lines of a file, and a part of the next one."""
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:lines]) + whole[lines][:50])


def pairs(*lengths: int, names: Sequence[str] = ("torch_mha", "sdpa")) -> set[Pair]:
    """Return each implementation with each case."""
    return {(name, case_of(length)) for length in lengths for name in names}


def test_results_of_a_cut_file_are_kept(tmp_path: Path) -> None:
    """A line that was cut is left out; the run says what it has."""
    plan = write_sweep(tmp_path, [4, 8, 16])
    (task,) = plan.tasks
    path = make_try(tmp_path, plan, task, "preempted")
    write_run(path, [4, 8, 16])
    cut(path, 6)
    kept = pairs(4, 8) | pairs(16, names=["torch_mha"])
    assert keep_counted(tmp_path, plan, task, list_tries(tmp_path, task)) == kept
    stored = read_run(path)
    assert {(result.implementation, result.case) for result in stored.results} == kept
    assert stored.run.planned == {"torch_mha": Planned(cases=3), "sdpa": Planned(cases=2)}
    assert stored.end is not None
    assert stored.end.outcome == "finished"
    assert stored.problems == ()
    assert path.with_suffix(".jsonl-cut").read_bytes().endswith(b'"implementati')


def test_all_tries_of_a_task_can_be_merged(tmp_path: Path) -> None:
    """Merged, a try that was cut and the one that went on are whole: nothing is missing, and nothing is there twice."""
    plan = write_sweep(tmp_path, [4, 8, 16])
    (task,) = plan.tasks
    path = make_try(tmp_path, plan, task, "preempted")
    write_run(path, [4, 8, 16])
    cut(path, 4)
    finished = keep_counted(tmp_path, plan, task, list_tries(tmp_path, task))
    assert finished == pairs(4) | pairs(8, names=["torch_mha"])
    write_run(make_try(tmp_path, plan, task, "done", count=2), [8, 16], left=[("torch_mha", 8)])
    (made,) = join_parts(group_parts(list(find_parts([tmp_path / "tasks"]))), tmp_path / "merged")
    assert (made.problems, made.repeated, made.results) == ([], 0, 6)
    stored = read_run(made.path)
    assert stored.run.planned == {"torch_mha": Planned(cases=3), "sdpa": Planned(cases=3)}
    assert stored.end is not None


@pytest.mark.parametrize(("processes", "outcome", "counts"), [(2, None, False), (3, None, True), (2, "finished", True)])
def test_a_case_counts_if_all_planned_processes_timed_it(
    tmp_path: Path, processes: int, outcome: Literal["finished"] | None, counts: bool
) -> None:
    """A try that was cut between two processes has not timed its case; one that finished may have had less time."""
    plan = write_sweep(tmp_path, [4], kind="profile")
    (task,) = plan.tasks
    path = make_try(tmp_path, plan, task, "preempted")
    write_run(path, [])
    names = ("torch_mha", "sdpa")
    planned = dict.fromkeys(names, Planned(cases=0, timed=1, processes=3))
    run = replace(read_run(path).run, job=StoredJob(command="sweep", planned=planned))
    path.unlink()
    with RunFile.create(tmp_path, run, path) as file:
        recorded = Recording(run=run, file=file)
        for name in names:
            recorded.add(time_calls(name, case=case_of(4), run=run.id, processes=processes))
        if outcome:
            recorded.end(outcome, 0)
    kept = keep_counted(tmp_path, plan, task, list_tries(tmp_path, task))
    assert kept == (pairs(4) if counts else frozenset())
    if counts:
        found = read_run(path)
        assert found.run.planned == planned
        assert [one.timing.processes for one in found.results if one.timing] == [processes] * 2


def test_a_whole_file_is_left_alone(tmp_path: Path) -> None:
    """A run file that has what was planned, and ended, is not written again."""
    plan = write_sweep(tmp_path, [4, 8])
    (task,) = plan.tasks
    path = make_try(tmp_path, plan, task, "done")
    write_run(path, [4])
    before = path.stat()
    assert keep_counted(tmp_path, plan, task, list_tries(tmp_path, task)) == pairs(4)
    assert path.stat().st_ino == before.st_ino
    assert not path.with_suffix(".jsonl-cut").exists()


def test_a_case_of_a_profile_is_kept_whole(tmp_path: Path) -> None:
    """A case on which one implementation has no times is left out: times are compared within one process only."""
    plan = write_sweep(tmp_path, [4, 8], kind="profile")
    (task,) = plan.tasks
    path = make_try(tmp_path, plan, task, "preempted")
    write_run(path, [4, 8], untimed="the work limit was exceeded")
    cut(path, 4)
    assert keep_counted(tmp_path, plan, task, list_tries(tmp_path, task)) == pairs(4)
    assert {result.case for result in read_run(path).results} == {case_of(4)}


def test_a_file_without_a_whole_case_is_put_aside(tmp_path: Path) -> None:
    """A merge does not find it; nor a file that is no run file."""
    plan = write_sweep(tmp_path, [4], kind="profile")
    (task,) = plan.tasks
    first, second = (make_try(tmp_path, plan, task, None, count=count) for count in (1, 2))
    write_run(first, [4], names=["sdpa"])
    second.write_bytes(format_line(read_run(first).run)[:20])
    assert keep_counted(tmp_path, plan, task, list_tries(tmp_path, task)) == frozenset()
    assert [path.name for path in sorted(first.parent.glob("*.jsonl*"))] == [
        "0001-try1.jsonl-cut", "0001-try2.jsonl-cut",
    ]  # fmt: skip
