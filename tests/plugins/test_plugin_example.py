"""Tests of an installed plug-in distribution, whose implementation is found by its registered name."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.records.outcome_facts import ClockChanged, ExcludedFromTiming
from attnbench.records.run_file import read_run
from commands import run_new_process

pytestmark = pytest.mark.install

EXAMPLE = Path(__file__).parents[1] / "plugin_example"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder into which a copy of the example is installed.

    The copy keeps build output out of the example's source folder.
    """
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in ("pyproject.toml", "example_attention.py"):
        (source / name).write_text((EXAMPLE / name).read_text())
    words = (*PIP, "install", "--no-deps", "--no-build-isolation", "--target", target, source)
    done = subprocess.run(
        words, cwd=source, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def run_attnbench(installed: Path, *arguments: str, cwd: Path) -> str:
    """Run an attnbench command that finds the installed example, and return its standard output."""
    done = run_new_process(*arguments, cwd=cwd, search=[installed])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_list_shows_the_plugin_with_its_distribution(installed: Path, tmp_path: Path) -> None:
    """The list shows the origin of the name, the number of supported cases and the reasons of refusals."""
    (row,) = json.loads(run_attnbench(installed, "list", "example_einsum", "--support", "--json", "-", cwd=tmp_path))[
        "implementations"
    ]
    assert row["name"] == "example_einsum"
    assert row["origin"] == "example_attention:EINSUM (attnbench-plugin-example 0.1.0)"
    assert row["fault"] == ""
    assert 0 < row["supported"] < row["cases"]
    assert list(row["refused"]) == ["the kernel takes no need_weights"]


def test_the_plugin_conforms_by_its_name(installed: Path, tmp_path: Path) -> None:
    """``conform`` checks the plug-in by name: no check fails, and cases that need attention weights are unsupported."""
    words = ["--shard", "1/3", "--check", "forward_parity", "--check", "input_gradients", "--json", "-"]
    findings = json.loads(run_attnbench(installed, "conform", "example_einsum", *words, cwd=tmp_path))["findings"]
    assert {f["implementation"] for f in findings} == {"example_einsum"}
    assert {f["status"] for f in findings} == {"passed", "unsupported"}
    assert {f["reason"] for f in findings if f["status"] == "unsupported"} == {"the kernel takes no need_weights"}


def test_the_plugin_is_timed_by_its_name(installed: Path, tmp_path: Path) -> None:
    """``profile`` loads the plug-in by name in timing processes, measures its memory, and prints its row.

    A process on a busy machine may disturb the clock of a case, whose times are then left out.
    """
    words = ["--lengths", "8,16", "--passes", "forward", "--processes", "1", "--threads", "1", "--results", "results"]
    table = run_attnbench(installed, "profile", "example_einsum", *words, cwd=tmp_path)
    assert re.search(r"^example_einsum +profile only ", table, re.MULTILINE), table
    (file,) = tmp_path.rglob("*.jsonl")
    found = [result for result in read_run(file).results if result.implementation == "example_einsum"]
    assert len(found) == 2
    for result in found:
        assert result.memory is not None
        if result.timing is None:
            assert isinstance(result.untimed, ExcludedFromTiming)
            assert isinstance(result.untimed.fault, ClockChanged)
        else:
            assert all(result.timing.samples_ns)
