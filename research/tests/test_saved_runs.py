"""Tests of the study of thresholds of pytest-benchmark."""

from pathlib import Path

import pytest

from research.saved_runs import DATA, format_table, main, read_saved_runs


def test_the_stored_profiles_have_the_numbers_of_the_page() -> None:
    """Twenty runs of unchanged code: no difference above 10 %, while medians of times differ by more in many pairs."""
    ratios, times = read_saved_runs(sorted(DATA.glob("*.gz")))
    assert {name: len(own) for name, own in ratios.items()} == {"unchanged": 20, "slow_20": 20, "slow_50": 10}
    table = format_table(ratios, times)
    assert "| 5% | 8 of 380 | 400 of 400 | 200 of 200 | 169 of 380 |" in table
    assert "| 10% | 0 of 380 | 370 of 400 | 200 of 200 | 155 of 380 |" in table
    assert "is 6.8%" in table


def test_a_slower_copy_is_counted() -> None:
    """Each pair of a base and a slower run counts once, and an order of two unchanged runs, too."""
    ratios = {"unchanged": [1.0, 1.07], "slow_20": [1.2]}
    lines = format_table(ratios, {"unchanged": [1.0, 1.0]}).splitlines()
    assert lines[0] == "| threshold | unchanged | 16% slower | unchanged, by medians of times |"
    assert lines[2:5] == ["| 5% | 1 of 2 | 2 of 2 | 0 of 2 |", "| 10% | 0 of 2 | 2 of 2 | 0 of 2 |",
                          "| 15% | 0 of 2 | 1 of 2 | 0 of 2 |"]  # fmt: skip


def test_a_folder_without_profiles_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line names the remedy."""
    assert main(["--data", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("add --measure\n")
