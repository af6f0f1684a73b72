"""Tests of the command line of the detection study."""

import json
from pathlib import Path

import pytest

from research.detection.command import main
from research.detection.pools import Pool
from research.tests.detection.samples import make_pool


def store_pool(folder: Path, pool: Pool, name: str) -> None:
    """Store a pool in a file of the same form as the study's files."""
    lines = [json.dumps(dict(pool.header)), *(json.dumps(process) for process in pool.processes)]
    folder.joinpath(name).write_text("\n".join(lines) + "\n")


def test_judge_writes_a_table_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every rate in the table has an upper confidence bound. The output names a condition without stored runs."""
    store_pool(tmp_path, make_pool(), "runs-1-quiet.jsonl")
    store_pool(tmp_path, make_pool(), "true-1.jsonl")
    lines = [{"together": 2}, {"alone_s": 1.0, "together_s": 1.6}]
    tmp_path.joinpath("starts-1.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert main(["judge", "--data", str(tmp_path), "--threads", "1", "--draws", "20", "--most", "20"]) == 0
    printed = capsys.readouterr().out
    assert "no runs for condition 1-busy" in printed
    assert (
        "**1 thread, quiet**: δ, the smallest difference that counts, is 1 %; 24 processes; 0.10 cores in use before"
        in printed
    )
    row = next(line for line in printed.splitlines() if line.startswith("| attnbench |"))
    assert row.split(" | ")[3] == "0.0 % (≤ 13.9 %)"
    assert row.split(" | ")[5] == "100.0 % (≤ 100.0 %)"
    assert {path.suffix for path in tmp_path.glob("detection.*")} == {".md", ".json", ".svg", ".png"}
    stored = json.loads(tmp_path.joinpath("detection.json").read_text())
    assert stored[0]["tallies"][0]["states"] == {"same": 20}


def test_a_missing_measurement_is_an_error_that_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``judge`` needs stored runs and start times, and ``runs`` needs the stored numbers of rows of the plants."""
    assert main(["judge", "--data", str(tmp_path)]) == 1
    assert f"no runs in {tmp_path}: run python -m research.detection runs\n" in capsys.readouterr().err
    assert main(["runs", "--data", str(tmp_path)]) == 1
    assert "rows-1.json, the extra work of each plant, does not exist: run python -m" in capsys.readouterr().err
    store_pool(tmp_path, make_pool(), "runs-1-quiet.jsonl")
    assert main(["judge", "--data", str(tmp_path)]) == 1
    assert (
        "has no measured times to start a process: run python -m research.detection plants --threads 1"
        in capsys.readouterr().err
    )
