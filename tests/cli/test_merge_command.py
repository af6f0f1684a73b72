"""Tests of ``attnbench merge``: what it prints, and its exit codes."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from attnbench.cli.merge_command import ORIGINS, command
from attnbench.plugins.registry import PluginError
from attnbench.records.run_file import format_line, read_run
from attnbench.records.types import End, Finding, Machine, Result, Run
from installed_plugins import Installer
from sweep_folders import make_try, write_run, write_sweep

RUN = Run(
    id="one", time="2026-01-01T00:00:00+00:00", command="attnbench conform --shard 1/2", suite="core",
    machine=Machine(name="some-cpu", cpu="Some CPU", cores=4, memory_bytes=2**33), versions={"torch": "2.11.0"},
    threads=2, list_digest="whole", implementations=("sdpa",),
)  # fmt: skip
CASE = "multihead/B1.L4.S4.E16.H2/bias/mask=none/regime=plain/seed={}/float32/cpu/eval"


def write_shard(folder: Path, index: int, node: str = "") -> None:
    """Write one of two shards."""
    run = replace(RUN, id=f"run-{index}", command=f"attnbench conform --shard {index}/2", node=node)
    finding = Finding(check="forward_parity", status="passed")
    result = Result(run=run.id, implementation="sdpa", case=CASE.format(index), findings=(finding,), suite="core")
    end = End(run=run.id, time=run.time, outcome="finished", exit_code=0)
    (folder / f"{run.id}.jsonl").write_bytes(b"".join(map(format_line, (run, result, end))))


def test_the_merged_file_is_printed(tmp_path: Path) -> None:
    """Standard output has the path of the merged file, so that it can be given to ``attnbench report``."""
    write_shard(tmp_path, 1, node="aa")
    write_shard(tmp_path, 2, node="aa")
    done = CliRunner().invoke(command, [str(tmp_path), "--into", str(tmp_path / "out")], standalone_mode=False)
    assert (done.return_value, done.stderr) == (0, "2 results of 2 runs on some-cpu, node aa\n")
    assert len(read_run(Path(done.stdout.strip())).results) == 2


def test_a_missing_shard_has_exit_code_3(tmp_path: Path) -> None:
    """A missing shard is named on standard error; what is there is merged."""
    write_shard(tmp_path, 2)
    done = CliRunner().invoke(command, [str(tmp_path), "--into", str(tmp_path / "out")], standalone_mode=False)
    assert (done.return_value, done.stderr) == (
        3, "warning: missing: shard 1/2\n1 result of 1 run on some-cpu\n",
    )  # fmt: skip
    assert read_run(Path(done.stdout.strip())).end is None


@pytest.mark.parametrize("given", [".", "tasks", "tasks/any", "tasks/any/0001-try1.jsonl"])
def test_a_missing_task_has_exit_code_3(tmp_path: Path, given: str) -> None:
    """Of a sweep, each task without every result is named with the command that runs it; what is there is merged."""
    plan = write_sweep(tmp_path, [4], [8], [16])
    write_run(make_try(tmp_path, plan, plan.tasks[0], "done"), [4])
    write_run(make_try(tmp_path, plan, plan.tasks[1], "stopped"), [8], names=["sdpa"])
    done = CliRunner().invoke(
        command, [str(tmp_path / given), "--into", str(tmp_path / "merged")], standalone_mode=False
    )
    results = "2 results of 1 run" if given.endswith("jsonl") else "3 results of 2 runs"
    assert (done.return_value, done.stderr) == (
        3,
        "warning: missing: tasks any/0002 (1 of 2 results), any/0003 (0 of 2 results); submit what is missing with: "
        f"attnbench sweep --results {tmp_path} --resume\n{results} on some-cpu, kind of node: any\n",
    )
    assert read_run(Path(done.stdout.strip())).end is None


def test_a_task_that_was_given_up_is_told_apart(tmp_path: Path) -> None:
    """The command for such a task allows one more try."""
    plan = write_sweep(tmp_path, [4], [8], tries=1)
    write_run(make_try(tmp_path, plan, plan.tasks[0], "done"), [4])
    make_try(tmp_path, plan, plan.tasks[1], "failed")
    done = CliRunner().invoke(command, [str(tmp_path / "tasks"), "--into", str(tmp_path / "merged")])
    assert done.stderr.startswith(
        "warning: given up: task any/0002 (0 of 2 results); try once more with: "
        f"attnbench sweep --results {tmp_path} --resume --tries 2\n"
    )


def test_a_whole_sweep_is_merged_without_a_warning(tmp_path: Path) -> None:
    """A task whose run file has every result is whole, whatever became of its try; a file that is gone is missed."""
    plan = write_sweep(tmp_path, [4], [8])
    write_run(make_try(tmp_path, plan, plan.tasks[0], "done"), [4])
    path = make_try(tmp_path, plan, plan.tasks[1], None)
    write_run(path, [8])
    merge = [str(tmp_path / "tasks"), "--into"]
    done = CliRunner().invoke(command, [*merge, str(tmp_path / "merged")], standalone_mode=False)
    assert (done.return_value, done.stderr) == (0, "4 results of 2 runs on some-cpu, kind of node: any\n")
    make_try(tmp_path, plan, plan.tasks[1], "done")
    path.unlink()
    done = CliRunner().invoke(command, [*merge, str(tmp_path / "again")], standalone_mode=False)
    assert done.return_value == 3
    assert done.stderr.startswith("warning: missing: task any/0002 (0 of 2 results); submit ")


def test_a_plug_in_that_cannot_be_asked_ends_the_merge(tmp_path: Path, install: Installer) -> None:
    """Without it nobody knows whether parts are missing, so that nothing is written."""
    write_shard(tmp_path, 1)
    install("origins", "mine = no_such_module:find_origin", group=ORIGINS)
    with pytest.raises(PluginError, match="cannot import 'mine': ModuleNotFoundError"):
        CliRunner().invoke(
            command, [str(tmp_path), "--into", str(tmp_path / "out")], standalone_mode=False, catch_exceptions=False
        )
    assert not (tmp_path / "out").exists()
