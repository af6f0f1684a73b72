"""Tests of the temporary folder of a run, which is removed at the end of the run, or by the next run."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from attnbench.runner.scratch import Scratch, remove_abandoned

KILLED = """
import os, signal
from attnbench.runner.scratch import Scratch
made = Scratch()
(made.path / "tensor").write_bytes(b"0")
print(made.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the temporary folders of this process and of its child processes in ``tmp_path``."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_a_folder_is_removed_with_its_run() -> None:
    """``Scratch.remove`` removes the folder and its content."""
    made = Scratch()
    (made.path / "tensor").write_bytes(b"0")
    made.remove()
    assert not made.path.exists()


def test_the_folder_of_a_killed_run_is_removed_by_the_next_run() -> None:
    """A new run removes the folder of a killed run, and keeps folders of live runs and folders that are of no run."""
    living = Scratch()
    other = living.path.with_name("attnbench-not-a-run")
    other.mkdir()
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    assert (left / "tensor").exists()
    following = Scratch()
    assert not left.exists()
    assert living.path.exists()
    assert other.exists()
    living.remove()
    following.remove()


def test_a_folder_that_cannot_be_locked_stays(tmp_path: Path) -> None:
    """A folder whose lock cannot be opened, for example because it belongs to another user, is not removed."""
    path = tmp_path / "attnbench-other" / "lock"
    path.mkdir(parents=True)
    remove_abandoned(tmp_path)
    assert path.exists()
