"""Tests of run files of tries that were ended early: what is kept of them can be merged."""

from pathlib import Path

from attnbench.records.joined_file import join_parts
from attnbench.records.parts import find_parts, group_parts
from attnbench.records.run_file import format_line, read_run
from attnbench.records.types import Planned
from attnbench.sweep.cut_files import keep_whole_cases
from attnbench.sweep.tries import list_tries
from sweep_folders import case_of, make_try, write_run, write_sweep


def cut(path: Path, lines: int) -> None:
    """Keep only the first lines of a file, and a part of the next one."""
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:lines]) + whole[lines][:50])


def test_whole_cases_of_a_cut_file_are_kept(tmp_path: Path) -> None:
    """A case that one implementation lacks, and a line that was cut, are left out; the run says what it has."""
    plan = write_sweep(tmp_path, [4, 8, 16])
    (task,) = plan.tasks
    path = make_try(tmp_path, plan, task, "preempted")
    write_run(path, [4, 8, 16])
    cut(path, 6)
    assert keep_whole_cases(tmp_path, plan, task, list_tries(tmp_path, task)) == {case_of(4), case_of(8)}
    stored = read_run(path)
    assert {result.case for result in stored.results} == {case_of(4), case_of(8)}
    assert stored.run.planned == {"torch_mha": Planned(cases=2), "sdpa": Planned(cases=2)}
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
    finished = keep_whole_cases(tmp_path, plan, task, list_tries(tmp_path, task))
    assert finished == {case_of(4)}
    write_run(make_try(tmp_path, plan, task, "done", count=2), [8, 16])
    (made,) = join_parts(group_parts(list(find_parts([tmp_path / "tasks"]))), tmp_path / "merged")
    assert (made.problems, made.repeated, made.results) == ([], 0, 6)
    stored = read_run(made.path)
    assert stored.run.planned == {"torch_mha": Planned(cases=3), "sdpa": Planned(cases=3)}
    assert stored.end is not None


def test_a_whole_file_is_left_alone(tmp_path: Path) -> None:
    """A run file that has what was planned, and ended, is not written again."""
    plan = write_sweep(tmp_path, [4, 8])
    (task,) = plan.tasks
    path = make_try(tmp_path, plan, task, "done")
    write_run(path, [4])
    before = path.stat()
    assert keep_whole_cases(tmp_path, plan, task, list_tries(tmp_path, task)) == {case_of(4)}
    assert path.stat().st_ino == before.st_ino
    assert not path.with_suffix(".jsonl-cut").exists()


def test_a_file_without_a_whole_case_is_put_aside(tmp_path: Path) -> None:
    """A merge does not find it; nor a file that is no run file."""
    plan = write_sweep(tmp_path, [4])
    (task,) = plan.tasks
    first, second = (make_try(tmp_path, plan, task, None, count=count) for count in (1, 2))
    write_run(first, [4], names=["sdpa"])
    second.write_bytes(format_line(read_run(first).run)[:20])
    assert keep_whole_cases(tmp_path, plan, task, list_tries(tmp_path, task)) == frozenset()
    assert [path.name for path in sorted(first.parent.glob("*.jsonl*"))] == [
        "0001-try1.jsonl-cut", "0001-try2.jsonl-cut",
    ]  # fmt: skip
