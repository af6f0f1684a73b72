"""Tests of the questions to Slurm, and of probes, with programs in place of Slurm's own."""

from pathlib import Path

import msgspec
import pytest
import torch

from attnsweep import submission
from attnsweep.configuration import ConfigurationError, Machine
from attnsweep.slurm import SlurmError, ask_slurm, check_machines, find_hopeless, find_job_states, require_slurm
from attnsweep.submission import probe
from attnsweep.task import Probe, Seen, find_own_versions
from sweep_folders import make_plan


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which Slurm's programs are looked for first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def write_program(folder: Path, name: str, text: str) -> None:
    """Write a shell script."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_machine_without_slurm_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sbatch nothing is submitted; the remedy is named."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        require_slurm()
    assert str(caught.value) == (
        "no sbatch on this machine: submit from a machine of a Slurm cluster, or run the sweep here with --local"
    )


def test_a_silent_slurm_is_named(programs: Path) -> None:
    """The first line of an error of Slurm's program is told, and how to do without Slurm."""
    write_program(programs, "squeue", "echo cannot reach >&2; echo the controller >&2; exit 1")
    with pytest.raises(ConfigurationError) as caught:
        ask_slurm("squeue")
    assert str(caught.value) == (
        "Slurm does not answer squeue: cannot reach; try again when it does, or run the sweep here with --local"
    )


def test_slurm_is_asked_for_what_a_task_asks_for(programs: Path, tmp_path: Path) -> None:
    """Sbatch tests every kind of machine with all of its settings and the time limit of a task, and submits nothing."""
    write_program(programs, "squeue", "true")
    write_program(programs, "sbatch", f'echo "$@" >> {tmp_path}/asked')
    machine = Machine(
        name="full", constraint="a100&fast", gres="gpu:1", partition="long", account="mine", qos="high", cpus=8,
        memory="32GB", device="cuda",
    )  # fmt: skip
    check_machines([machine, Machine(name="any")], minutes=90)
    assert (tmp_path / "asked").read_text().splitlines() == [
        "--test-only --constraint=a100&fast --gres=gpu:1 --partition=long --account=mine --qos=high --cpus-per-task=8 "
        "--mem=32GB --time=90 --wrap=true",
        "--test-only --time=90 --wrap=true",
    ]


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("allocation failure: Invalid feature specification", "Invalid feature specification"),
        (
            "sbatch: error: invalid partition specified: no\nallocation failure: Inv",
            "invalid partition specified: no",
        ),
        ("", "no reason was printed"),
    ],
)
def test_a_machine_that_no_node_fits_is_refused_with_the_reason_of_slurm(
    programs: Path, printed: str, reason: str
) -> None:
    """The line names the machine, what was asked for, and Slurm's first reason."""
    write_program(programs, "squeue", "true")
    write_program(programs, "sbatch", f"printf '{printed}' >&2; exit 1")
    with pytest.raises(ConfigurationError) as caught:
        check_machines([Machine(name="one", cpus=99)], minutes=60)
    assert not isinstance(caught.value, SlurmError)
    assert str(caught.value) == (
        f"machine 'one': Slurm refuses a job with --cpus-per-task=99 --time=60: {reason}; change the machine's "
        "settings, or wait until its nodes are up"
    )


def test_a_silent_slurm_refuses_no_machine(programs: Path) -> None:
    """It is told apart from a refusal, because a dry run goes on without the answer."""
    write_program(programs, "squeue", "exit 1")
    write_program(programs, "sbatch", "exit 1")
    with pytest.raises(SlurmError):
        check_machines([Machine(name="any")], minutes=60)


def test_states_are_of_the_jobs_that_are_asked_for(programs: Path) -> None:
    """Jobs of other sweeps are left out, and so are jobs that have ended."""
    write_program(programs, "squeue", "echo '17_0|RUNNING'; echo '17_1|PENDING'; echo '9|RUNNING'")
    assert find_job_states(["17_0", "17_1", "17_2"]) == {"17_0": "RUNNING", "17_1": "PENDING"}
    assert find_job_states([]) == {}


def test_reasons_that_no_waiting_ends_are_told_from_others(programs: Path) -> None:
    """A full cluster is worth waiting for, a limit of the partition is not."""
    write_program(
        programs, "squeue", "echo '17_0|Resources'; echo '17_1|PartitionTimeLimit'; echo '9|BadConstraints'; "
        "echo '18|QOSMaxCpuPerJobLimit'; echo '19|AssocGrpCpuLimit'",
    )  # fmt: skip
    assert find_hopeless(["17_0", "17_1", "18", "19"]) == {
        "17_1": "PartitionTimeLimit", "18": "QOSMaxCpuPerJobLimit",
    }  # fmt: skip


class FakeJob:
    """A job of submitit."""

    job_id = "5"
    canceled = False

    class paths:  # noqa: N801
        """Its files."""

        stderr = "submitit/5_0_log.err"

    def cancel(self, check: bool = True) -> None:
        """Cancel the job."""
        FakeJob.canceled = True


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Probe]:
    """Return the probes that are submitted; none of them runs, and none is in the queue."""
    submitted: list[Probe] = []
    FakeJob.canceled = False
    monkeypatch.setattr(submission, "_make_slurm_executor", lambda *words, **settings: None)
    monkeypatch.setattr(submission, "_submit", lambda _, calls: submitted.extend(calls) or [FakeJob()])
    monkeypatch.setattr(submission, "find_job_states", lambda asked: {})
    monkeypatch.setattr(submission, "find_hopeless", lambda asked: {})
    monkeypatch.setattr(submission, "SEEN_WITHIN_S", 0.0)
    monkeypatch.setattr(submission, "POLL_S", 0.0)
    return submitted


def test_a_folder_that_nodes_do_not_share_is_refused(tmp_path: Path, jobs: list[Probe]) -> None:
    """A probe whose job ended without its file shows it; what is waited for is told before."""
    told: list[str] = []
    with pytest.raises(ConfigurationError, match=r"machine 'any': job 5 ended, and any-.*\.json is not in .*probes"):
        probe(tmp_path, make_plan([4]), wait_s=60, tell=told.append)
    assert FakeJob.canceled
    assert told == [
        f"test of the nodes: waiting up to 60 s for a file in {tmp_path}/probes from each of the jobs 5 on any",
        "job 5 ended; waiting up to 0 s until its file is seen here",
    ]


def test_a_probe_that_waits_too_long_is_canceled(
    tmp_path: Path, jobs: list[Probe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue ends the wait with the state of the job."""
    monkeypatch.setattr(submission, "find_job_states", lambda asked: {"5": "PENDING"})
    with pytest.raises(ConfigurationError, match=r"no answer in 0 s from a job on any \(PENDING\); wait longer"):
        probe(tmp_path, make_plan([4]), wait_s=0, tell=print)
    assert FakeJob.canceled


def test_a_probe_that_will_never_start_ends_the_wait(
    tmp_path: Path, jobs: list[Probe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line has the reason in Slurm's word."""
    monkeypatch.setattr(submission, "find_job_states", lambda asked: {"5": "PENDING"})
    monkeypatch.setattr(submission, "find_hopeless", lambda asked: {"5": "PartitionNodeLimit"})
    with pytest.raises(ConfigurationError) as caught:
        probe(tmp_path, make_plan([4]), wait_s=60, tell=print)
    assert str(caught.value) == (
        "machine 'any': Slurm will not start job 5: PartitionNodeLimit; change the machine's settings"
    )
    assert FakeJob.canceled


@pytest.mark.parametrize("allowed", [False, True])
def test_versions_of_a_machine_are_compared(
    tmp_path: Path, jobs: list[Probe], monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    """A kind of machine with another torch is refused before anything is submitted, unless that is allowed."""

    def answer(asked: object) -> dict[str, str]:
        seen = Seen(token=jobs[-1].token, versions=find_own_versions() | {"torch": "1.0"})
        Path(jobs[-1].path).write_bytes(msgspec.json.encode(seen))
        return {"5": "RUNNING"}

    monkeypatch.setattr(submission, "find_job_states", answer)
    plan = make_plan([4], allow_different_versions=allowed, machines=(Machine(name="any"),))
    if allowed:
        probe(tmp_path, plan, wait_s=60, tell=print)
    else:
        with pytest.raises(ConfigurationError, match=r"machine 'any' has torch 1\.0 instead of .*: install the same"):
            probe(tmp_path, plan, wait_s=60, tell=print)


def test_a_probe_writes_its_token(tmp_path: Path) -> None:
    """What a probe writes is what the submitting process looks for."""
    Probe(path=str(tmp_path / "one.json"), token="abc")()
    seen = msgspec.json.decode((tmp_path / "one.json").read_bytes(), type=Seen)
    assert (seen.token, seen.versions) == ("abc", find_own_versions())


def test_a_probe_tells_what_the_node_lacks(tmp_path: Path) -> None:
    """A node without the device of a case says so, with the words of a run there."""
    case = "multihead/B1.L4.S4.E16.H2/bias/mask=none/regime=plain/seed=0/float32/cuda/eval"
    Probe(path=str(tmp_path / "one.json"), token="abc", case=case)()
    seen = msgspec.json.decode((tmp_path / "one.json").read_bytes(), type=Seen)
    assert (seen.missing is None) == torch.cuda.is_available()
    if seen.missing:
        assert "CUDA" in seen.missing


def test_a_machine_without_the_device_is_refused(
    tmp_path: Path, jobs: list[Probe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the probe misses ends the command with one line, before a task is submitted."""

    def answer(asked: object) -> dict[str, str]:
        seen = Seen(token=jobs[-1].token, versions=find_own_versions(), missing="CUDA is missing")
        Path(jobs[-1].path).write_bytes(msgspec.json.encode(seen))
        return {"5": "RUNNING"}

    monkeypatch.setattr(submission, "find_job_states", answer)
    with pytest.raises(
        ConfigurationError, match=r"^machine 'any': on its node, CUDA is missing; Slurm gives a job a GPU"
    ):
        probe(tmp_path, make_plan([4], machines=(Machine(name="any"),)), wait_s=60, tell=print)
