"""Tests of ``attnbench.results.read`` on files of asv, and on files that are neither asv's nor pytest-benchmark's."""

import math
import re
from pathlib import Path

import pandas as pd
import pytest

import attnbench
from attnbench.records.run_file import ResultsError, format_line
from stored_history import write_asv
from timed_runs import REFERENCE, store, time_calls

ROOT = Path(__file__).parents[2]


def test_values_of_asv_are_rows_of_the_tables_of_runs(tmp_path: Path) -> None:
    """A call is a row; what asv has no benchmark of has no column, and a number that is n/a is missing."""
    write_asv(tmp_path, 0, {"time_ns": 7.5, "time_ratio": 1.5, "flop": 9, "peak_bytes": 8, "kernel_calls": 3})
    write_asv(tmp_path, 1, {"time_ns": math.nan, "time_ratio": 2.5})
    frame = attnbench.results.read(tmp_path)
    assert list(frame.columns) == [
        "implementation", "pass", "length", "median_ns", "ratio", "flop", "suite", "machine", "environment", "commit",
        "date",
    ]  # fmt: skip
    first, second = frame.to_dict("records")
    assert (first["implementation"], first["length"], first["pass"]) == ("mine.py:attend", 128, "forward")
    assert (first["median_ns"], first["ratio"], first["flop"]) == (7.5, 1.5, 9)
    assert (math.isnan(second["median_ns"]), second["ratio"]) == (True, 2.5)
    assert first["commit"] < second["commit"]
    memory = attnbench.results.read(tmp_path, table="memory")
    assert memory["peak_bytes"].tolist() == [8]
    assert not {"median_ns", "kernel_calls", "saved_bytes"} & set(memory.columns)


def test_the_stored_history_of_this_repository_has_a_row_for_each_call() -> None:
    """Every column but those of the file itself is one of the tables of a run."""
    frame = attnbench.results.read(ROOT / "results" / "asv")
    assert frame["commit"].nunique() == 12
    assert (frame["ratio"].dropna() > 0).all()


def test_runs_and_other_files_are_read_together(tmp_path: Path) -> None:
    """The rows of runs come first; what a file does not measure is missing in its rows."""
    stored = store([time_calls(REFERENCE), time_calls("mine", 2.0)])
    lines = [stored.run, *stored.results]
    (tmp_path / "run-1.jsonl").write_bytes(b"".join(map(format_line, lines)))
    write_asv(tmp_path, 0, {"time_ratio": 1.5})
    frame = attnbench.results.read(tmp_path)
    assert frame["ratio"].tolist() == [1.0, 2.0, 1.5]
    assert [pd.isna(value) for value in frame["commit"]] == [True, True, False]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"commit_hash": "ab', "is no whole JSON file: Unterminated string"),
        ('{"commit_hash": 1, "result_columns": []}', ": it is no whole result file of asv: Expected `str`, got"),
        ("[]", " is neither a result file of asv nor of pytest-benchmark; a run file has the suffix .jsonl"),
        ('{"benchmarks": [], "machine_info": {}}', ": it is no whole file of pytest-benchmark: Object missing"),
        (
            '{"benchmarks": [], "machine_info": {}, "datetime": "", "commit_info": {}}',
            ": it has no benchmark of the fixture attention_benchmark",
        ),
    ],
    ids=["cut", "asv", "foreign", "benchmark", "others"],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str, fault: str) -> None:
    """The line has the file and what was needed."""
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match=re.escape(str(path))) as raised:
        attnbench.results.read(path)
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """A folder without results, a file that does not exist, and a table that asv does not have."""
    with pytest.raises(ResultsError, match="has no results: name a folder of run files, of asv's results"):
        attnbench.results.read(tmp_path)
    with pytest.raises(ResultsError, match=r"cannot read .*none\.json: No such file"):
        attnbench.results.read(tmp_path / "none.json")
    path = write_asv(tmp_path, 0, {"time_ratio": 1.5})
    with pytest.raises(ResultsError, match="files of asv have no table findings; read timings or memory"):
        attnbench.results.read(path, table="findings")
    write_asv(tmp_path, 0, {"flop": 1}, params=[["'a'"], ["8"]])
    with pytest.raises(ResultsError, match=r"track_flop is no benchmark of attnbench\.asv: its parameters must be"):
        attnbench.results.read(path)
