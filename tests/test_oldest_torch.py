"""Test of the quick suite under the oldest torch with which all tests are run: the oldest that xformers takes."""

import os
import subprocess
from pathlib import Path

import pytest

OLDEST = "2.10."
VARIABLE = "ATTNBENCH_OLDEST_TORCH_PYTHON"

pytestmark = [
    pytest.mark.install,
    pytest.mark.skipif(
        VARIABLE not in os.environ,
        reason=f"{VARIABLE} is not set: make oldest-torch, then set it to .venv-oldest/bin/python",
    ),
]


def test_quick_suite_holds_with_the_oldest_torch(tmp_path: Path) -> None:
    """A built-in implementation passes the quick suite under the oldest supported torch."""
    python = Path(os.environ[VARIABLE])
    ask = "from importlib.metadata import version; print(version('torch'))"
    torch = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    assert torch.startswith(OLDEST), f"{VARIABLE} must name a Python with torch {OLDEST}*, got {torch}"
    command = [python.parent / "attnbench", "conform", "reshaped", "--suite", "quick", "--results", tmp_path]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}:\n{done.stdout}\n{done.stderr}"
