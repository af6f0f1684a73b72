"""Tests of ``attnbench sweep`` on a Slurm cluster of two nodes, which the tests start on this machine."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm.cluster import Cluster, ClusterError, find_obstacle, start_cluster

ATTNBENCH = (sys.executable, "-c", "from attnbench.cli import main; main()")
CONFIGURATION = """
kind = "conform"
implementations = ["batched_matmul"]
results = "there"
[axes]
case = ["multihead/B2.L5.S7.E24.H3/-/mask=bool2d/*", "multihead/B2.L5.S7.E24.H3/bias+batch_first/*bfloat16/*"]
[limits]
cases = 1
[[machines]]
name = "one"
constraint = "first"
cpus = 1
[[machines]]
name = "two"
constraint = "second"
cpus = 1
"""
# Seconds to wait for a state. Slurm needs up to 10 s to see that a node is dead, and a task 10 s on two idle cores.
STATE_S = 240


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    """Start a cluster; without the packages the tests are skipped, and fail in CI."""
    if obstacle := find_obstacle():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(obstacle)
    with start_cluster() as started:
        yield started


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster; after the test it has no jobs, and both nodes run."""
    yield shared_cluster
    shared_cluster.reset()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a configuration of two tiny cases on two machines: four tasks."""
    (tmp_path / "sweep.toml").write_text(CONFIGURATION)
    return tmp_path


def attnbench(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of attnbench on the cluster."""
    return subprocess.run(
        cluster.inside(*ATTNBENCH, *words), cwd=folder, env=cluster.environment, capture_output=True, text=True,
        check=False, timeout=STATE_S,
    )  # fmt: skip


def wait_until(is_so: Callable[[], object]) -> None:
    """Wait for a state."""
    until_s = time.monotonic() + STATE_S
    while not is_so() and time.monotonic() < until_s:
        time.sleep(0.1)
    assert is_so()


def read_findings(runs: list[Path]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return the checks and their statuses of each result, by implementation and case."""
    lines = [json.loads(line) for run in runs for line in run.read_text().splitlines()]
    return {
        (line["implementation"], line["case"]): sorted((one["check"], one["status"]) for one in line["findings"])
        for line in lines
        if "findings" in line
    }


def merge(cluster: Cluster, folder: Path, sweep: str) -> list[Path]:
    """Return the merged run files of a sweep."""
    merged = attnbench(cluster, folder, "merge", f"{sweep}/tasks", "--into", f"{sweep}/merged")
    assert merged.returncode == 0, merged.stderr
    return [folder / run for run in merged.stdout.split()]


def test_a_sweep_survives_the_death_of_a_node(cluster: Cluster, folder: Path) -> None:
    """The other node goes on, what is missing is named, --resume submits only that; the results are those of --local.

    Ctrl-C leaves the jobs running, and the command that it names cancels them.
    """
    with subprocess.Popen(
        cluster.inside(*ATTNBENCH, "sweep", "sweep.toml"), cwd=folder, env=cluster.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as sweep:  # fmt: skip
        try:
            wait_until(lambda: list(folder.glob("there/tasks/two/*.json")) or sweep.poll() is not None)
            cluster.kill_node("n2")
            cluster.wait_for_state("n2", "down")
            wait_until(lambda: read_outcomes(folder, "one") == ["done", "done"])
            sweep.send_signal(signal.SIGINT)
            printed, told = sweep.communicate(timeout=STATE_S)
        finally:
            sweep.kill()
    assert sweep.returncode == 130, printed + told
    cancel = re.search(r"the jobs go on; .*; cancel them with: (scancel .*)", told)
    assert cancel, told
    cluster.run(*cancel[1].split())
    wait_until(lambda: not cluster.run("squeue", "-h"))

    seen = attnbench(cluster, folder, "sweep", "--results", "there", "--status")
    missing = re.findall(r"^missing: task (\S+): 0 of 1 results; (.*)", seen.stdout, re.MULTILINE)
    assert seen.returncode == 3
    assert [name for name, _ in missing] in (["two/0001", "two/0002"], ["two/0001"], ["two/0002"])
    assert any("try 1 was killed" in why for _, why in missing)

    cluster.revive_node("n2")
    resumed = attnbench(cluster, folder, "sweep", "--results", "there", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert f"to submit: {len(missing)} of 4 tasks" in resumed.stderr
    assert "4 done, 0 failed; results: 4 of 4" in resumed.stdout
    submitted = [json.loads(line)["task"] for line in (folder / "there/submissions.jsonl").read_text().splitlines()]
    assert submitted[4:] == [name for name, _ in missing]

    local = attnbench(cluster, folder, "sweep", "sweep.toml", "--local", "--results", "here")
    assert local.returncode == 0, local.stderr
    runs, local_runs = merge(cluster, folder, "there"), merge(cluster, folder, "here")
    assert len(read_findings(runs)) == 2
    assert read_findings(runs) == read_findings(local_runs)
    reported = attnbench(cluster, folder, "report", *map(str, runs))
    assert reported.returncode == 0, reported.stdout + reported.stderr


def read_outcomes(folder: Path, machine: str) -> list[str | None]:
    """Return how the tries of a machine's tasks ended."""
    return [json.loads(path.read_text())["outcome"] for path in sorted(folder.glob(f"there/tasks/{machine}/*.json"))]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('constraint = "second"', 'constraint = "secnd"', "constraint 'secnd': no node has the feature 'secnd'; "),
        ("cpus = 1", 'partition = "none"', "Slurm refuses the job: "),
    ],
)
def test_what_the_cluster_lacks_is_one_line(cluster: Cluster, folder: Path, old: str, new: str, message: str) -> None:
    """The exit code is 2, no plan is written, and no job waits."""
    (folder / "sweep.toml").write_text(CONFIGURATION.replace(old, new))
    refused = attnbench(cluster, folder, "sweep", "sweep.toml")
    assert refused.returncode == 2
    told = [line for line in refused.stderr.splitlines() if line.startswith("attnbench: ")]
    assert told == refused.stderr.splitlines()[-1:]
    assert told[0].startswith(f"attnbench: {message}")
    assert not (folder / "there" / "plan.json").exists()
    wait_until(lambda: not cluster.run("squeue", "-h"))  # the other machine's probe is cancelled


def test_a_folder_that_a_node_does_not_share_is_found_before_anything_is_submitted(
    cluster: Cluster, folder: Path
) -> None:
    """The probe on the second machine ends, and its file is not seen: one line names the machine and the folder."""
    (folder / "there").mkdir()
    cluster.kill_node("n2")
    try:
        cluster.revive_node("n2", hidden=folder / "there")
    except ClusterError as error:
        pytest.skip(f"this machine does not allow a mount: {error}")
    refused = attnbench(cluster, folder, "sweep", "sweep.toml", "--probe", "20")
    assert refused.returncode == 2
    told = refused.stderr.splitlines()[-1]
    assert told.startswith("attnbench: machine 'two': job ")
    assert "the nodes do not share this folder" in told
    assert not (folder / "there" / "plan.json").exists()


def fail_in_cluster(folders: list[Path]) -> None:
    """Start a cluster, store its folder, and raise an error."""
    with start_cluster() as started:
        folders.append(started.folder)
        raise RuntimeError("on purpose")


def test_daemons_end_with_their_cluster() -> None:
    """A cluster that failed or was stopped leaves no process, no folder and no file elsewhere."""
    if obstacle := find_obstacle():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(obstacle)
    folders: list[Path] = []
    with pytest.raises(RuntimeError, match="on purpose"):
        fail_in_cluster(folders)
    (folder,) = folders
    assert not folder.exists()
    environments = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environments.append(path.read_bytes())
        except OSError:
            continue
    assert not [text for text in environments if f"SLURM_CONF={folder}".encode() in text]
