"""Tests of the study of padding: its table from stored samples, and a small measurement."""

from pathlib import Path
from typing import Any

import pytest

from attnbench.oracle import sentence_encoder
from research import padded
from research.lines import read


def make_record(*, varlen: int) -> dict[str, Any]:
    """Make the record of a process: a call of the reference took 4 ms, and a call of ``varlen`` took ``varlen`` ns."""
    times = {"torch_mha": 4_000_000, "(twin)": 4_000_000, "varlen": varlen}
    calls = {
        name: {"times_ns": [time] * 9, "waited_ns": [0] * 9, "switches": [0] * 9, "cycles": list(range(9))}
        for name, time in times.items()
    }
    samples = dict.fromkeys(padded.PASSES, calls)
    return {"kind": "process", "shape": "16×128", "threads": 2, "padded": 0.5, "samples": samples}


def test_the_table_shows_how_many_times_as_fast_an_implementation_is() -> None:
    """A row has the median of the ratio over processes, its confidence interval, the verdict, and the process count."""
    processes = [make_record(varlen=time) for time in (2_000_000, 1_000_000, *[1_600_000] * 8)]
    rows = padded.format_table(processes).splitlines()
    assert rows[2] == "| 16×128 | 50.0% | 2 | forward | `torch_mha` | 4.00 | 1 |  |  | 10 |"
    assert rows[3] == "| 16×128 | 50.0% | 2 | forward | `(twin)` | 4.00 | 1.00 | 1.00 to 1.00 | same | 10 |"
    assert rows[4] == "| 16×128 | 50.0% | 2 | forward | `varlen` | 1.60 | 2.50 | 2.50 to 2.50 | faster | 10 |"
    assert len(rows) == 2 + len(padded.PASSES) * 3
    few = padded.format_table(processes[:3]).splitlines()[4]
    assert few.endswith("| 2.50 | 2.00 to 4.00 | unknown: 3 processes are too few for a verdict | 3 |")


def test_the_copy_of_the_reference_is_compared_with_the_reference() -> None:
    """Each cycle calls the reference or its copy, the A/A control.

    The samples of a slower copy do not count for the reference.
    """
    processes = [make_record(varlen=2_000_000) for _ in range(10)]
    for process in processes:
        for samples in process["samples"].values():
            samples["torch_mha"] |= {"cycles": [0, 3, 4, 7, 8, 11, 12, 15, 16]}
            samples["(twin)"] |= {"cycles": [1, 2, 5, 6, 9, 10, 13, 14, 17], "times_ns": [8_000_000] * 9}
    row = padded.format_table(processes).splitlines()[3]
    assert row == "| 16×128 | 50.0% | 2 | forward | `(twin)` | 8.00 | 0.50 | 0.50 to 0.50 | slower | 10 |"


@pytest.mark.parametrize("machine", sorted(path.name for path in padded.DATA.iterdir() if path.is_dir()))
def test_the_stored_table_is_that_of_the_stored_samples(machine: str) -> None:
    """The table is made again from the stored samples. In each row with a verdict, removing padding is faster."""
    folder = padded.DATA / machine
    stored = sorted(folder.glob("*.jsonl"))
    found = [read(path) for path in stored]
    records = [record for one in found if one is not None for record in one[1]]
    table = (folder / "padded.md").read_text()
    assert padded.format_table(records) == table
    rows = [row for row in table.splitlines() if "`varlen" in row and "inconclusive" not in row]
    assert rows
    assert all("| faster |" in row for row in rows)


def test_shapes_are_parsed(capsys: pytest.CaptureFixture[str]) -> None:
    """A shape is written as batch x length. Any other text is an error, which is reported in one line."""
    assert padded.Shape.parse("8x512") == padded.Shape(8, 512)
    with pytest.raises(SystemExit):
        padded.main(["--shapes", "16by128"])
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.endswith("argument --shapes: must be batch x length, such as 16x128,8x512, got '16by128'")


def test_a_missing_encoder_is_an_error_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is reported in one line, and nothing is measured."""
    monkeypatch.setattr(sentence_encoder, "describe_missing", lambda: "it is not installed: pip install it")
    assert padded.main(["--data", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "it is not installed: pip install it\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sentence_encoder.describe_missing() is not None, reason=str(sentence_encoder.describe_missing()))
def test_a_process_interleaves_the_calls_of_each_pass() -> None:
    """Each pass calls the reference and its A/A control; the fused path is interleaved with these two only."""
    found = padded.take_samples(padded.TakePaddedSamples(batch=2, length=8, threads=1, budget_s=0.01, seed=0))
    twice = {"torch_mha", "(twin)"}
    assert found.samples["forward"].keys() == twice | {"varlen_packed", "varlen"}
    assert found.samples["forward+backward"].keys() == twice | {"varlen_packed", "varlen"}
    assert found.samples["forward, fused path"].keys() == twice | {"torch_mha, fused path"}
    assert all(min(one["times_ns"]) > 0 for samples in found.samples.values() for one in samples.values())
    assert 0.2 < found.padded < 0.5


@pytest.mark.extended
@pytest.mark.skipif(sentence_encoder.describe_missing() is not None, reason=str(sentence_encoder.describe_missing()))
def test_stored_processes_are_continued_only_with_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each process is stored when it ends. The second command finds the file, and fails without --resume."""
    arguments = ["--data", str(tmp_path), "--shapes", "2x8", "--budget", "0.01", "--threads", "1", "--processes", "1"]
    assert padded.main(arguments) == 0
    assert "| 2×8 |" in capsys.readouterr().out
    assert padded.main(arguments) == 1
    assert "add --resume to continue it" in capsys.readouterr().err
