"""Tests of the folder of a run: it goes with the run, or with the next one."""

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
    """Folders of these tests are in one of their own, for other processes too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_a_folder_goes_with_its_run() -> None:
    """With what is in it."""
    made = Scratch()
    (made.path / "tensor").write_bytes(b"0")
    made.remove()
    assert not made.path.exists()


def test_what_a_killed_run_left_goes_with_the_next_run() -> None:
    """And that of a run which lives stays, as does what is no run's."""
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


def test_a_folder_that_cannot_be_looked_at_stays(tmp_path: Path) -> None:
    """Another user's, say."""
    path = tmp_path / "attnbench-other" / "lock"
    path.mkdir(parents=True)
    remove_abandoned(tmp_path)
    assert path.exists()
