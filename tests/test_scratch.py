"""Tests of the temporary folder of a run: it is removed with the run, or by the next run."""

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
    """Put temporary folders of these tests into ``tmp_path``, also those of child processes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_a_folder_is_removed_with_its_run() -> None:
    """The folder is removed with its content."""
    made = Scratch()
    (made.path / "tensor").write_bytes(b"0")
    made.remove()
    assert not made.path.exists()


def test_the_folder_of_a_killed_run_is_removed_by_the_next_run() -> None:
    """The folder of a live run stays, and so does a folder that is not of a run."""
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
    """A folder whose lock cannot be opened, such as another user's, stays."""
    path = tmp_path / "attnbench-other" / "lock"
    path.mkdir(parents=True)
    remove_abandoned(tmp_path)
    assert path.exists()
