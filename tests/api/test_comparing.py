"""Tests of ``attnbench.compare``."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import attnbench
from attnbench.cli import attnbench as command
from attnbench.records.run_file import ResultsError, RunFile, StoredRun
from attnbench.words.changes import describe_change
from timed_runs import REFERENCE, case_of, store, time_calls


def make_runs(name: str = "own") -> tuple[StoredRun, StoredRun]:
    """Make two runs; the implementation takes 0.5 of the reference's time in the first, and 0.8 in the second."""
    return (
        store([time_calls(REFERENCE), time_calls(name, 0.5)], run="run-1"),
        store([time_calls(REFERENCE, run="run-2"), time_calls(name, 0.8, run="run-2")], run="run-2"),
    )


def write(run: StoredRun, folder: Path) -> Path:
    """Write the file of a run, and return its path."""
    with RunFile.create(folder, run.run) as file:
        for result in run.results:
            file.append(result)
    return folder / run.run.machine.name / f"{run.run.id}.jsonl"


def test_a_slower_implementation_is_found() -> None:
    """The change of time has its verdict, its numbers and the factor; bytes that did not change are the same."""
    found = attnbench.compare(*make_runs())
    assert not found.ok
    (change,) = found.worse
    assert (change.implementation, change.aspect, change.verdict, change.case) == ("own", "time", "slower", case_of())
    frame = found.to_frame().set_index(["implementation", "aspect"])
    row = frame.loc[("own", "time")]
    assert (row["base"], row["new"], row["factor"]) == pytest.approx((0.5, 0.8, 1.6), rel=1e-3)
    assert row["factor_low"] <= row["factor"] <= row["factor_high"]
    assert frame.loc[("own", "peak_bytes"), "verdict"] == "same"
    assert math.isclose(frame.loc[("own", "peak_bytes"), "base"], 3 * 2**20)


def test_a_larger_threshold_hides_the_change() -> None:
    """Nothing is worse if the time may grow by more than it did."""
    assert attnbench.compare(*make_runs(), threshold=0.9).ok


def test_files_ids_tables_and_results_are_runs(tmp_path: Path) -> None:
    """A run may be named by its file or id, or be a table or the result of a profile; the changes are the same."""
    runs = make_runs()
    paths = [write(run, tmp_path) for run in runs]
    expected = attnbench.compare(*paths).changes
    assert attnbench.compare("run-1", "run-2", results=tmp_path).changes == expected
    assert attnbench.compare(*map(attnbench.results.read, paths)).changes == expected
    made = [attnbench.ProfileResult(run=run, path=None) for run in runs]
    assert attnbench.compare(*made).changes == expected


def test_the_command_finds_the_same(tmp_path: Path) -> None:
    """``attnbench compare`` prints the same table, and writes the same changes."""
    paths = [str(write(run, tmp_path)) for run in make_runs()]
    found = attnbench.compare(*paths)
    table, json_ = (
        CliRunner().invoke(command, ["compare", *paths, *words], standalone_mode=False)
        for words in ((), ("--json", "-"))
    )
    lines = [line.rstrip() for line in table.stdout.splitlines()]
    assert lines == [line for line in str(found).splitlines() if not line.startswith("warning: ")]
    assert len(lines) > 2
    assert [one["told"] for one in json.loads(json_.stdout)["changes"]] == [
        describe_change(one) for one in found.changes
    ]


def test_a_notebook_and_a_page_show_escaped_text() -> None:
    """Names of implementations are text in a notebook and on the page."""
    found = attnbench.compare(*make_runs("<script>alert(1)"))
    assert "&lt;script&gt;alert(1)" in found._repr_html_()
    assert "<script>alert(1)" not in found._repr_html_() + found.to_html()
    assert "slower" in found.to_markdown()


@pytest.mark.parametrize(
    ("base", "error", "message"),
    [
        (3, ValueError, "base must be a run, got a int; pass the id of a run, the path of its file, or the result of"),
        ("nowhere", ResultsError, "no run 'nowhere' in "),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, base: Any, error: type[Exception], message: str) -> None:
    """An argument that names no run raises an error of one line."""
    with pytest.raises(error) as raised:
        attnbench.compare(base, make_runs()[1], results=tmp_path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_invalid_threshold_and_a_table_of_two_runs_are_refused(tmp_path: Path) -> None:
    """The threshold is a fraction above 0, and a table must be of one run."""
    runs = make_runs()
    with pytest.raises(ValueError, match=r"threshold: needs a number above 0, got 0; for example 0\.05"):
        attnbench.compare(*runs, threshold=0)
    both = attnbench.results.read(*(write(run, tmp_path) for run in runs))
    with pytest.raises(ValueError, match="base must be a table of one run, got one of 2 runs"):
        attnbench.compare(both, runs[0])
