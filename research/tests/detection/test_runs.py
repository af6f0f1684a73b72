"""Tests of the real runs on the plants."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from attnbench.records.run_file import RunFile
from attnbench.records.types import Finding, Machine, Result, Run
from research.detection import plants, pools, runs
from research.detection.pools import Condition, Pool, Setup
from research.lines import StudyError
from research.tests.detection.samples import CASE, make_pool


def make_command(byte: str | None, measured: Pool | None) -> Any:
    """Make a function that replaces ``subprocess.run``.

    For ``attnbench compare``, the function writes ``byte`` as the verdict on peak bytes. For ``attnbench profile``, it
    stores the samples of the pool ``measured``. If ``byte`` or ``measured`` is None, the function writes nothing for
    the command that needs it.
    """

    def run_command(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if "compare" in command and byte:
            changes = [{"aspect": "peak_bytes", "verdict": byte, "told": ""}]
            Path(command[command.index("--json") + 1]).write_text(json.dumps({"changes": changes}))
        elif "profile" in command and measured:
            store_run(Path(command[command.index("--results") + 1]), measured, command)
        elif "--results" not in command:
            raise FileNotFoundError(command[0])  # a program that describes the machine: not installed
        return subprocess.CompletedProcess(command, 1, "", "it went wrong")

    return run_command


def store_run(folder: Path, measured: Pool, command: list[str]) -> None:
    """Store the run file that ``attnbench profile`` writes: the samples of the reference and of the given plants.

    The words of ``command`` contain the import paths of the plants.
    """
    machine = Machine(name="m", cpu="c", cores=2, memory_bytes=1)
    run = Run(id="r", time="t", command="c", machine=machine, versions={}, threads=1)
    names = {name: str(share) for share, name in plants.PATHS.items() if name in command} | {plants.BASE: plants.BASE}
    passed = (Finding(check="forward_parity", status="passed"),)
    with RunFile.create(folder, run) as file:
        for name, share in names.items():
            timing = pools.make_timing(measured.processes, share, threads=1)
            file.append(Result(run="r", implementation=name, case=CASE, findings=passed, timing=timing))


def test_runs_are_counted_by_their_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plant gets a speed verdict; ``PLUS_BYTE`` gets a verdict on its memory instead.

    Stored runs are not repeated.
    """
    monkeypatch.setattr(runs.subprocess, "run", make_command("bigger", make_pool()))
    path = tmp_path / "runs-1-quiet.jsonl"
    condition, setup = Condition(threads=1, load="quiet"), Setup(length=8, budget_s=0.0)
    settings: Any = {"rows": {}, "shares": (0, 2, plants.BYTE_SHARE), "say": lambda _: None}
    runs.gather_runs(path, condition, setup, runs=2, resume=False, **settings)
    monkeypatch.setattr(runs.subprocess, "run", make_command("same", make_pool(disturbed=True)))
    assert len(runs.gather_runs(path, condition, setup, runs=3, resume=True, **settings)) == 9
    counted = {(condition, share): states for condition, share, states, _ in runs.count_verdicts(tmp_path)}
    assert counted == {
        ("1 thread, quiet", 0): {"same": 2, "inconclusive": 1},
        ("1 thread, quiet", 2): {"slower": 2, "inconclusive": 1},
        ("1 thread, quiet", plants.BYTE_SHARE): {"bigger": 2, "same": 1},
    }


def test_runs_without_a_verdict_on_the_plant_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study ends after five failed runs, and can be resumed. The error quotes the last line of the run's output."""
    monkeypatch.setattr(runs.subprocess, "run", make_command(None, None))
    message = r"5 runs failed; the last failed with: exit code 1, no speed verdict; last line of output: it went"
    for resume in (False, True):
        with pytest.raises(StudyError, match=message):
            runs.gather_runs(
                tmp_path / "runs.jsonl", Condition(threads=1, load="quiet"), Setup(length=8, budget_s=0.0),
                rows={}, shares=(2,), runs=1, resume=resume, say=lambda _: None,
            )  # fmt: skip
