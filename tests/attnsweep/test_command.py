"""Tests of ``attnbench sweep``: the plan, a sweep on this machine, and what it refuses."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from attnbench.records.run_file import read_run
from attnsweep.plan import read_plan
from commands import START, run_command
from sweep_folders import write_sweep

pytestmark = pytest.mark.long

CONFIGURATION = """
kind = "conform"
implementations = ["batched_matmul"]
results = "there"
[axes]
case = ["multihead/B2.L5.S7.E24.H3/-/mask=bool2d/*", "multihead/B2.L5.S7.E24.H3/bias+batch_first/*bfloat16/*"]
[limits]
cases = 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a configuration of two tiny cases in two tasks."""
    (tmp_path / "sweep.toml").write_text(CONFIGURATION)
    return tmp_path


def sweep(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    return run_command("sweep", *words, cwd=folder, **variables)


def wait_for(path: Path) -> None:
    """Wait until a file exists and is not empty: it is created before it is written."""
    until_s = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert path.stat().st_size


@pytest.mark.extended
def test_a_killed_sweep_is_resumed(folder: Path) -> None:
    """Of a sweep that was killed in its second task, only this task is submitted again; then nothing is.

    A dry run before writes nothing, and prints the plan that is run afterwards.
    """
    planned = sweep(folder, "sweep.toml", "--dry-run").stdout
    assert "conform, suite quick, of batched_matmul" in planned
    assert "machine any (any node): 2 cases in 2 tasks, about " in planned
    assert "results: 2; the times are a forecast" in planned
    assert not (folder / "there").exists()
    with subprocess.Popen(
        [*START, "sweep", "sweep.toml", "--local"], cwd=folder, stderr=subprocess.DEVNULL, start_new_session=True
    ) as running:
        wait_for(folder / "there" / "tasks" / "any" / "0002-try1.json")
        os.killpg(running.pid, signal.SIGKILL)
    assert f"sweep {read_plan(folder / 'there').hash}: conform" in planned
    found = sweep(folder, "sweep.toml", "--status")
    until_s = time.monotonic() + 60
    while "1 running" in found.stdout and time.monotonic() < until_s:  # the killed task frees its memory first
        found = sweep(folder, "sweep.toml", "--status")
    assert found.returncode == 3
    assert "tasks: 0 queued, 0 running, 1 done, 0 failed, 1 missing; results: 1 of 2" in found.stdout
    assert "missing: task any/0002: 0 of 1 results; failed once; try 1 was killed" in found.stdout
    again = sweep(folder, "sweep.toml", "--local", "--resume")
    assert again.returncode == 0, again.stderr
    assert "to submit: 1 of 2 tasks" in again.stderr
    assert "tasks: 0 queued, 0 running, 2 done, 0 failed; results: 2 of 2" in again.stdout
    assert "merge the results with: attnbench merge there/tasks --into there/merged" in again.stdout
    submitted = [json.loads(line)["task"] for line in (folder / "there" / "submissions.jsonl").read_text().splitlines()]
    assert submitted == ["any/0001", "any/0002", "any/0002"]
    assert "to submit: 0 of 2 tasks" in sweep(folder, "--results", "there", "--local", "--resume").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep.toml", "--status"], "there has no sweep: plan.json: No such file or directory"),
        (["sweep.toml", "--status", "--resume"], "--resume: --dry-run, --status and --resume exclude one another"),
        (["none.toml"], "cannot read none.toml: No such file or directory; name a TOML file"),
        (["sweep.toml", "--lengths", "8"], "--lengths: a sweep of kind conform has the cases of its suite"),
        (["sdpa", "--minutes", "0"], "Invalid value for '--minutes': 0 is not in the range x>=1."),
        (["sweep.toml", "--minutes", "1"], "--minutes: a task in Slurm needs at least 2, got 1: it is told to stop "),
        (["sweep.toml", "nosuch"], "unknown implementation 'nosuch'"),
        (["sweep.toml", "--case", "none*"], "--case: 'none*' matches none of "),
    ],
)
def test_bad_input_is_one_line(folder: Path, words: list[str], message: str) -> None:
    """The exit code is 2, and nothing is written."""
    refused = sweep(folder, *words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"attnbench: {message}")
    assert refused.stderr.count("\n") == 1
    assert not (folder / "there").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('case = ["multi', 'case = ["none*", "multi', "sweep.toml: axes.case: 'none*' matches none of "),
        ("cases = 1", "cases = 0", "Invalid value for sweep.toml: limits.cases: 0 is not in the range x>=1."),
        ("cases = 1", "minutes = 1", "sweep.toml: limits.minutes: a task in Slurm needs at least 2, got 1: "),
    ],
)
def test_a_value_of_the_file_is_named_by_its_key(folder: Path, old: str, new: str, message: str) -> None:
    """A message about a value that the file has names the file and the key, not an option that nobody wrote."""
    (folder / "sweep.toml").write_text(CONFIGURATION.replace(old, new))
    refused = sweep(folder, "sweep.toml", "--dry-run")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"attnbench: {message}")


@pytest.mark.extended
def test_a_dry_run_checks_the_nodes_if_it_can(folder: Path) -> None:
    """What no node has is refused as on submission; without an answer from Slurm, a line says what is not checked."""
    configuration = folder / "sweep.toml"
    configuration.write_text(CONFIGURATION + '[[machines]]\nname = "one"\nconstraint = "frist"\n')
    seen = sweep(folder, "sweep.toml", "--dry-run", PATH="/nowhere")
    assert seen.returncode == 0
    assert seen.stdout.splitlines()[-1].startswith(
        "constraints and other settings of the nodes were not checked: no sbatch on this machine: "
    )
    for name in ("srun", "squeue"):
        write_program(folder / name, "true")
    write_program(folder / "sbatch", "echo 'allocation failure: Invalid feature specification' >&2; exit 1")
    refused = sweep(folder, "sweep.toml", "--dry-run", PATH=f"{folder}:/usr/bin:/bin")
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        "attnbench: machine 'one': Slurm refuses a job with --constraint=frist --time=60: Inv"
    )
    assert "not checked" not in sweep(folder, "sweep.toml", "--dry-run", "--local", PATH="/nowhere").stdout


@pytest.mark.extended
def test_a_sweep_outlives_its_cluster(folder: Path) -> None:
    """Without an answer from Slurm, the files say what is there, and --local runs what is missing."""
    assert sweep(folder, "sweep.toml", "--local").returncode == 0
    there = folder / "there"
    for path in there.glob("tasks/any/0002*"):
        path.unlink()
    (there / "submissions.jsonl").write_text('{"task":"any/0002","job":"7_1","executor":"slurm"}\n')
    write_program(folder / "squeue", "echo no controller >&2; exit 1")
    gone = f"{folder}:/usr/bin:/bin"
    seen = sweep(folder, "--results", "there", "--status", PATH=gone)
    assert (seen.returncode, seen.stderr) == (
        3,
        "warning: Slurm does not answer squeue: no controller; try again when it does, or run the sweep here with "
        "--local. A task counts as missing here although its job may wait or run\n",
    )
    assert "1 done, 0 failed, 1 missing; results: 1 of 2" in seen.stdout
    resumed = sweep(folder, "--results", "there", "--resume", "--local", PATH=gone)
    assert resumed.returncode == 0, resumed.stderr
    assert "to submit: 1 of 2 tasks" in resumed.stderr
    assert "2 done, 0 failed; results: 2 of 2" in resumed.stdout


@pytest.mark.extended
def test_a_task_that_was_given_up_gets_more_tries(folder: Path) -> None:
    """--resume with a larger number of tries runs the task again; without, the task stays as it is."""
    assert sweep(folder, "sweep.toml", "--local", "--tries", "1").returncode == 0
    there = folder / "there"
    record = there / "tasks" / "any" / "0002-try1.json"
    record.write_text(record.read_text().replace('"outcome":"done"', '"outcome":"failed"'))
    record.with_suffix(".jsonl").unlink()
    kept = sweep(folder, "--results", "there", "--resume", "--local")
    assert kept.returncode == 1
    assert "try failed tasks once more with: attnbench sweep --results there --resume --local --tries 2" in kept.stdout
    again = sweep(folder, "--results", "there", "--resume", "--local", "--tries", "2")
    assert again.returncode == 0, again.stderr
    run = read_run(next((there / "tasks" / "any").glob("0002-try2.jsonl"))).run
    assert run.command == "attnbench sweep sweep.toml --local --tries 1"


def write_program(path: Path, text: str) -> None:
    """Write a shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_without_slurm_nothing_is_submitted(folder: Path) -> None:
    """A machine without sbatch is told about --local."""
    refused = sweep(folder, "sweep.toml", PATH="/nowhere")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert refused.stderr.startswith("attnbench: no sbatch on this machine: submit from")
    assert not (folder / "there").exists()


def test_another_configuration_is_not_resumed(folder: Path) -> None:
    """The plan of a folder is that of its first configuration."""
    write_sweep(folder / "there", [4])
    refused = sweep(folder, "sweep.toml", "--local", "--resume")
    assert refused.returncode == 2
    assert "the sweep in there was started with another configuration" in refused.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cases_of_a_device_that_only_nodes_have_are_planned(folder: Path) -> None:
    """A machine without CUDA plans a sweep on CUDA, and refuses in one line to run it itself."""
    configuration = folder / "sweep.toml"
    configuration.write_text(configuration.read_text() + '[[machines]]\nname = "node"\ndevice = "cuda"\n')
    planned = sweep(folder, "sweep.toml", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "machine node" in planned.stdout
    refused = sweep(folder, "sweep.toml", "--local")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].startswith("attnbench: --local: ")
    assert not (folder / "there" / "plan.json").exists()
