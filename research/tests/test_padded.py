"""The study of what removing padding is worth: its table from stored samples, and one small measurement."""

from pathlib import Path
from typing import Any

import pytest

from attnbench.oracle import sentence_encoder
from research import padded
from research.lines import read


def taken(*, varlen: int) -> dict[str, Any]:
    """A process in which the reference took 4 ms a call."""
    times = {"torch_mha": 4_000_000, "(twin)": 4_000_000, "varlen": varlen}
    calls = {
        name: {"times_ns": [time] * 9, "waited_ns": [0] * 9, "switches": [0] * 9, "cycles": list(range(9))}
        for name, time in times.items()
    }
    samples = dict.fromkeys(padded.PASSES, calls)
    return {"kind": "process", "shape": "16×128", "threads": 2, "padded": 0.5, "samples": samples}


def test_the_table_tells_how_many_times_as_fast() -> None:
    """The median over processes, with its interval, the judge's verdict, and the processes that count."""
    processes = [taken(varlen=time) for time in (2_000_000, 1_000_000, *[1_600_000] * 8)]
    rows = padded.format_table(processes).splitlines()
    assert rows[2] == "| 16×128 | 50.0% | 2 | forward | `torch_mha` | 4.00 | 1 |  |  | 10 |"
    assert rows[3] == "| 16×128 | 50.0% | 2 | forward | `(twin)` | 4.00 | 1.00 | 1.00 to 1.00 | same | 10 |"
    assert rows[4] == "| 16×128 | 50.0% | 2 | forward | `varlen` | 1.60 | 2.50 | 2.50 to 2.50 | faster | 10 |"
    assert len(rows) == 2 + len(padded.PASSES) * 3
    few = padded.format_table(processes[:3]).splitlines()[4]
    assert few.endswith("| 2.50 | 2.00 to 4.00 | unknown: 3 processes are too few for a verdict | 3 |")


def test_the_reference_beside_itself_is_compared_with_what_it_was_not() -> None:
    """The two share the cycles: a twin that is slower is not taken for a part of what it is compared with."""
    processes = [taken(varlen=2_000_000) for _ in range(10)]
    for process in processes:
        for samples in process["samples"].values():
            samples["torch_mha"] |= {"cycles": [0, 3, 4, 7, 8, 11, 12, 15, 16]}
            samples["(twin)"] |= {"cycles": [1, 2, 5, 6, 9, 10, 13, 14, 17], "times_ns": [8_000_000] * 9}
    row = padded.format_table(processes).splitlines()[3]
    assert row == "| 16×128 | 50.0% | 2 | forward | `(twin)` | 8.00 | 0.50 | 0.50 to 0.50 | slower | 10 |"


@pytest.mark.parametrize("machine", sorted(path.name for path in padded.DATA.iterdir()))
def test_the_committed_table_is_that_of_the_committed_samples(machine: str) -> None:
    """And removing padding is faster on each of them that can be told."""
    folder = padded.DATA / machine
    stored = sorted(folder.glob("*.jsonl"))
    found = [read(path) for path in stored]
    records = [record for one in found if one is not None for record in one[1]]
    told = (folder / "padded.md").read_text()
    assert padded.format_table(records) == told
    rows = [row for row in told.splitlines() if "`varlen" in row and "inconclusive" not in row]
    assert rows
    assert all("| faster |" in row for row in rows)


def test_shapes_are_read_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Batch and length; anything else is told on one line."""
    assert padded.Shape.parse("8x512") == padded.Shape(8, 512)
    with pytest.raises(SystemExit):
        padded.main(["--shapes", "16by128"])
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.endswith("argument --shapes: needs batch x length, such as 16x128,8x512, got '16by128'")


def test_without_the_encoder_the_error_is_its_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, before anything is measured."""
    monkeypatch.setattr(sentence_encoder, "describe_missing", lambda: "it is not installed: pip install it")
    assert padded.main(["--data", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "it is not installed: pip install it\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sentence_encoder.describe_missing() is not None, reason=str(sentence_encoder.describe_missing()))
def test_a_process_times_all_in_turns() -> None:
    """Both passes, the reference twice, and its fused path, beside nothing but the reference."""
    found = padded.take_samples(batch=2, length=8, threads=1, budget_s=0.01, seed=0)
    twice = {"torch_mha", "(twin)"}
    assert found["samples"]["forward"].keys() == twice | {"varlen_packed", "varlen"}
    assert found["samples"]["forward+backward"].keys() == twice | {"varlen_packed", "varlen"}
    assert found["samples"]["forward, fused path"].keys() == twice | {"torch_mha, fused path"}
    assert all(min(told["times_ns"]) > 0 for one in found["samples"].values() for told in one.values())
    assert 0.2 < found["padded"] < 0.5


@pytest.mark.skipif(sentence_encoder.describe_missing() is not None, reason=str(sentence_encoder.describe_missing()))
def test_it_goes_on_where_it_was_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every process is stored as it ends; a second start needs --resume."""
    asked = ["--data", str(tmp_path), "--shapes", "2x8", "--budget", "0.01", "--threads", "1", "--processes", "1"]
    assert padded.main(asked) == 0
    assert "| 2×8 |" in capsys.readouterr().out
    assert padded.main(asked) == 1
    assert "go on with it by --resume" in capsys.readouterr().err
