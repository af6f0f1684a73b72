"""Tests of ``attnbench sweep`` on a Slurm cluster of two nodes, which the tests start on this machine."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from commands import START
from slurm.cluster import Cluster, ClusterError, find_obstacle, start_cluster
from slurm.commands import STATE_S, attnbench, merge, read_outcomes, read_report, wait_until

pytestmark = [pytest.mark.extended, pytest.mark.long]

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
PROFILE = """
kind = "profile"
implementations = ["batched_matmul"]
results = "there"
[axes]
lengths = [16, 24]
batch = 1
heads = 2
head_dim = 8
passes = "forward"
[limits]
processes = 2
[[machines]]
name = "one"
constraint = "first"
cpus = 2
"""


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


def test_a_sweep_survives_the_death_of_a_node(cluster: Cluster, folder: Path) -> None:
    """The other node goes on, what is missing is named, --resume submits only that; the results are those of --local.

    Ctrl-C leaves the jobs running, and the command that it names cancels them.
    """
    with start_sweep(cluster, folder) as sweep:
        wait_until(lambda: list(folder.glob("there/tasks/two/*.json")) or sweep.poll() is not None)
        cluster.kill_node("n2")
        cluster.wait_for_state("n2", "down")
        wait_until(lambda: read_outcomes(folder, "one") == ["done", "done"])
        sweep.send_signal(signal.SIGINT)
        printed, told = sweep.communicate(timeout=STATE_S)
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
    for machine in ("one", "two"):
        # Merged together, the nodes have a file each, because both have every case; here one node has every case twice.
        remote, here = (
            read_report(cluster, folder, merge(cluster, folder, f"{sweep}/tasks/{machine}", f"{sweep}/{machine}"))
            for sweep in ("there", "here")
        )
        assert len(remote["findings.csv"]) > 2
        assert remote == here
    both = merge(cluster, folder, "there/tasks", "there/merged")
    assert len(both) == 2
    assert len(read_report(cluster, folder, both)["findings.csv"]) == len(remote["findings.csv"])


def test_a_task_that_is_preempted_and_requeued_goes_on(cluster: Cluster, folder: Path) -> None:
    """Neither a preemption nor Slurm's notice before the time limit becomes a result, and nobody submits again.

    Slurm kills all processes of a task that it preempts, the workers too. On the notice, the task requeues its job.
    """
    (folder / "sweep.toml").write_text(PROFILE)
    with start_sweep(cluster, folder) as sweep:
        job = start_try(cluster, folder, sweep, 1)
        cluster.run(
            "sbatch",
            "--partition=urgent",
            "--nodelist=n1",
            "--cpus-per-task=2",
            "--output=/dev/null",
            "--wrap=true",
        )
        wait_until(lambda: "PENDING" in cluster.run("squeue", "-h", "-j", job, "-o", "%T"))
        assert start_try(cluster, folder, sweep, 2) == job
        cluster.run("scancel", "--signal=USR2", job)
        wait_until(lambda: "PENDING" in cluster.run("squeue", "-h", "-j", job, "-o", "%T"))
        assert start_try(cluster, folder, sweep, 3) == job
        printed, told = sweep.communicate(timeout=STATE_S)
    assert sweep.returncode == 0, printed + told
    assert read_outcomes(folder, "one") == ["stopped", "preempted", "done"]
    assert "1 done, 0 failed; results: 4 of 4" in printed
    report = read_report(cluster, folder, merge(cluster, folder, "there/tasks", "there/merged"))
    assert len(report["timings.csv"]) == 1 + 4
    assert not [line for line in report["findings.csv"] if "crashed" in line or ",failed," in line]


def test_a_cancelled_task_is_missing_at_once(cluster: Cluster, folder: Path) -> None:
    """It is not taken for a task that Slurm starts again, its try does not count, and merging names the task."""
    (folder / "sweep.toml").write_text(PROFILE)
    with start_sweep(cluster, folder) as sweep:
        cluster.run("scancel", start_try(cluster, folder, sweep, 1))
        printed, told = sweep.communicate(timeout=STATE_S)
    assert sweep.returncode == 3, printed + told
    assert told.count("1 queued") <= 1  # before the task began
    assert re.search(r"missing: task one/0001: \d of 4 results; try 1 stopped: Slurm cancelled", printed), printed
    merged = attnbench(cluster, folder, "merge", "there/tasks", "--into", "there/merged")
    assert merged.returncode == 3
    assert re.search(r"warning: missing: task one/0001 \(\d of 4 results\); submit what is missing", merged.stderr)


@contextmanager
def start_sweep(cluster: Cluster, folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """Start the sweep of the configuration, in a session of its own; at the end it is killed, its jobs are not."""
    with subprocess.Popen(
        cluster.inside(*START, "sweep", "sweep.toml"), cwd=folder, env=cluster.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as sweep:  # fmt: skip
        try:
            yield sweep
        finally:
            sweep.kill()


def start_try(cluster: Cluster, folder: Path, sweep: "subprocess.Popen[str]", count: int) -> str:
    """Wait until a try of the only task runs workers, without Slurm's wait of two minutes; return the id of its job.

    Slurm waits because it revokes the credentials of a requeued job with a resolution of seconds: a job that starts in
    the same second is refused by the node.
    """
    record = folder / f"there/tasks/one/0001-try{count}.json"
    jobs: list[str] = []
    hastened: set[str] = set()

    def has_begun() -> bool:
        jobs[:] = cluster.run("squeue", "-h", "-p", "all", "-o", "%A").split()
        for job in set(jobs) - hastened:
            hastened.add(job)
            with suppress(ClusterError):  # it has begun already
                cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")
        return record.with_suffix(".jsonl").exists() or sweep.poll() is not None

    wait_until(has_begun)
    return jobs[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"second"\ncpus',
            '"secnd"\ncpus',
            "machine 'two': Slurm refuses a job with --constraint=secnd --cpus-per-task=1 --time=60: Invalid feature ",
        ),
        (
            '"second"\ncpus = 1',
            '"second"\ncpus = 99',
            "machine 'two': Slurm refuses a job with --constraint=second --cpus-per-task=99 --time=60: Requested node ",
        ),
        (
            "cpus = 1",
            'partition = "none"',
            "machine 'one': Slurm refuses a job with --constraint=first --partition=none --time=60: invalid partition ",
        ),
        (
            "cpus = 1",
            'partition = "closed"',
            "machine 'one': Slurm refuses a job with --constraint=first --partition=closed --time=60: Required ",
        ),
        ("cpus = 1", 'partition = "brief"', "machine 'one': Slurm will not start job "),
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


def test_the_network_of_the_cluster_has_the_loopback_interface_only(cluster: Cluster) -> None:
    """Its daemons run in this network, so that no other machine can reach them, whatever address they listen on."""
    listening = cluster.run("ss", "-H", "-ltnp")
    assert {"slurmdbd", "slurmctld", "slurmd"} <= set(re.findall(r'"(\w+)"', listening))
    links = cluster.run("cat", "/proc/net/dev").splitlines()[2:]
    assert [link.partition(":")[0].strip() for link in links] == ["lo"]
    networks = {process: str(Path(f"/proc/{process}/ns/net").readlink()) for process in cluster.list_processes()}
    assert networks
    assert set(networks.values()) == {cluster.run("readlink", "/proc/self/ns/net").strip()}
    assert str(Path("/proc/self/ns/net").readlink()) not in networks.values()


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
