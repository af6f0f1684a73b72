"""The study of what removing padding is worth: its table from stored samples, and one small measurement."""

from pathlib import Path

import pytest

from attnbench import encoder
from studies import padded

RECORD = {
    "kind": "process", "shape": "16×128", "threads": 2, "padded": 0.5,
    "samples": {
        name: {"torch_mha": [4_000_000] * 5, "(twin)": [4_000_000] * 5, "varlen": [2_000_000, 1_000_000, 9_000_000]}
        for name in padded.PASSES
    },
}  # fmt: skip


def test_the_table_tells_how_many_times_as_fast() -> None:
    """The median over processes of ratios of medians, with their interval and number."""
    slower = {**RECORD, "samples": {name: {**RECORD["samples"][name], "varlen": [8_000_000]} for name in padded.PASSES}}
    rows = padded.table([RECORD, RECORD, slower]).splitlines()
    assert rows[4] == "| 16×128 | 50.0% | 2 | forward | `varlen` | 2.00 | 2.00 | 0.50 to 2.00 | 3 |"
    assert len(rows) == 2 + 2 * 3


def test_shapes_are_read_as_they_are_written() -> None:
    """Batch and length."""
    assert padded.Shape.parse("8x512") == padded.Shape(8, 512)


@pytest.mark.skipif(encoder.missing() is not None, reason=str(encoder.missing()))
def test_a_process_times_all_in_turns() -> None:
    """Both passes, the reference twice, and its fused path where there are no gradients."""
    taken = padded.take(batch=2, length=8, threads=1, budget_s=0.01, seed=0)
    common = {"torch_mha", "(twin)", "varlen_packed", "varlen"}
    assert taken["samples"]["forward"].keys() == common | {padded.FUSED}
    assert taken["samples"]["forward+backward"].keys() == common
    assert all(min(times) > 0 for one in taken["samples"].values() for times in one.values())
    assert 0.2 < taken["padded"] < 0.5


@pytest.mark.skipif(encoder.missing() is not None, reason=str(encoder.missing()))
def test_it_goes_on_where_it_was_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every process is stored as it ends; a second start needs --resume."""
    asked = ["--data", str(tmp_path), "--shapes", "2x8", "--budget", "0.01", "--threads", "1", "--processes", "1"]
    assert padded.main(asked) == 0
    assert "| 2×8 |" in capsys.readouterr().out
    assert padded.main(asked) == 1
    assert "go on with it by --resume" in capsys.readouterr().err
