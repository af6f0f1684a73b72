"""Tests of --threads with several numbers."""

from typing import Any

import pytest

from attnbench.cli.recording import _format_command
from attnbench.cli.threads import choose_exit_code, measure_each


def test_each_number_is_measured_with_the_other_options() -> None:
    """The options of each run have one number; without --threads, there is one run without a number."""
    given: dict[str, Any] = {"threads": (1, 2), "json_file": None, "resume": None, "suite": "quick"}
    assert [one["threads"] for one in measure_each(given, lambda one: one)] == [1, 2]
    assert [one["suite"] for one in measure_each(given, lambda one: one)] == ["quick", "quick"]
    assert [one["threads"] for one in measure_each(given | {"threads": None}, lambda one: one)] == [None]


def test_the_worst_exit_code_counts() -> None:
    """A failure counts more than a missing verdict, and this more than success."""
    assert [choose_exit_code(codes) for codes in ([0, 0], [0, 3], [3, 1, 0])] == [0, 3, 1]


@pytest.mark.parametrize(
    ("words", "stored"),
    [
        (["--threads", "1,2", "sdpa"], "attnbench profile --threads 2 sdpa"),
        (["--threads=1,2"], "attnbench profile --threads=2"),
        (["sdpa"], "attnbench profile sdpa"),
    ],
)
def test_a_run_stores_its_own_number(monkeypatch: pytest.MonkeyPatch, words: list[str], stored: str) -> None:
    """The stored command repeats this run alone, so that it can be resumed."""
    monkeypatch.setattr("sys.argv", ["attnbench", "profile", *words])
    assert _format_command(2) == stored
