"""Tests of the case lists: what they cover, and that they are what their generator makes."""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from attnbench.cases import LEVELS, Level
from attnbench.operators.covering_array import build_covering_array, generate_combinations
from attnbench.operators.multihead import OPERATOR, generate_cases
from attnbench.operators.multihead.generate_cases import FACTORS, case_to_row, is_allowed, row_to_case

SMALL = {"a": (1, 2, 3), "b": (1, 2), "c": (1, 2), "d": (1, 2, 3)}


def uncovered(level: Level, strength: int) -> list[Any]:
    """Combinations of argument values that no case of a level has."""
    seen = set()
    for case in OPERATOR.suite(level):
        seen |= set(combinations(sorted(case_to_row(case).items(), key=lambda item: item[0]), strength))
    return [found for found in generate_combinations(FACTORS, is_allowed, strength) if found not in seen]


@pytest.mark.parametrize(("level", "strength"), [("core", 2), ("full", 3)])
def test_a_level_covers_every_combination_of_values(level: Level, strength: int) -> None:
    """Every pair of argument values that there can be is in core, and every triple in full."""
    assert uncovered(level, strength) == []


def test_a_missing_combination_would_be_told() -> None:
    """The test before this one can fail: quick leaves most pairs out."""
    assert len(uncovered("quick", 2)) > 1000


def test_lists_are_what_their_generator_makes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody edited a list by hand, but for the one of cases that were found."""
    monkeypatch.setattr(generate_cases, "FOLDER", tmp_path)
    generate_cases.write_lists()
    for level in LEVELS:
        made, kept = (
            (folder / f"{level}.txt").read_text()
            for folder in (tmp_path, Path(generate_cases.__file__).parent / "lists")
        )
        assert made == kept, f"run python -m attnbench.operators.multihead.generate_cases and raise VERSION ({level})"


def test_a_row_and_its_case_say_the_same() -> None:
    """What a case is made from can be read off it again, but for the number of queries that aliases fix."""
    for row in build_covering_array(FACTORS, is_allowed, 1):
        assert case_to_row(row_to_case(row)) == row


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_a_covering_array_has_every_allowed_combination(strength: int) -> None:
    """Nothing that is allowed is missing, nothing that is not allowed is there."""

    def differ(row: Mapping[str, Any]) -> bool:
        return not ("a" in row and row.get("a") == row.get("d"))

    rows = build_covering_array(SMALL, differ, strength)
    assert all(row.keys() == SMALL.keys() and differ(row) for row in rows)
    seen = {found for row in rows for found in combinations(sorted(row.items()), strength)}
    assert seen == set(generate_combinations(SMALL, differ, strength))


def test_given_rows_are_not_made_again() -> None:
    """What other rows cover needs no rows of its own."""
    rows = build_covering_array(SMALL, lambda _: True, 2)
    assert len(rows) <= 12
    assert build_covering_array(SMALL, lambda _: True, 2, given=rows) == []
