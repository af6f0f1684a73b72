"""Tests of the lists of cases: which combinations of values they cover, and that a generator's output equals them."""

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


def list_uncovered(level: Level, strength: int) -> list[Any]:
    """Return the allowed combinations of the values of ``strength`` arguments that occur in no case of a level."""
    seen = set()
    for case in OPERATOR.suite(level):
        seen |= set(combinations(sorted(case_to_row(case).items(), key=lambda item: item[0]), strength))
    return [found for found in generate_combinations(FACTORS, is_allowed, strength) if found not in seen]


@pytest.mark.parametrize(("level", "strength"), [("core", 2), ("full", 3)])
def test_a_level_covers_every_combination_of_values(level: Level, strength: int) -> None:
    """Every possible pair of argument values is in core, and every possible triple in full."""
    assert list_uncovered(level, strength) == []


def test_a_missing_combination_would_be_found() -> None:
    """The previous test can fail: quick leaves out most pairs."""
    assert len(list_uncovered("quick", 2)) > 1000


def test_lists_equal_the_output_of_their_generator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No list is edited by hand, except the list of cases that fuzzing found."""
    monkeypatch.setattr(generate_cases, "FOLDER", tmp_path)
    generate_cases.write_lists()
    for level in LEVELS:
        generated, stored = (
            (folder / f"{level}.txt").read_text()
            for folder in (tmp_path, Path(generate_cases.__file__).parent / "lists")
        )
        assert generated == stored, (
            f"run python -m attnbench.operators.multihead.generate_cases and raise VERSION ({level})"
        )


def test_a_row_is_restored_from_its_case() -> None:
    """Converting a row of the covering array to a case and back gives the same row."""
    for row in build_covering_array(FACTORS, is_allowed, 1):
        assert case_to_row(row_to_case(row)) == row


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_a_covering_array_has_exactly_the_allowed_combinations(strength: int) -> None:
    """No allowed combination is missing, and no forbidden combination occurs."""

    def are_different(row: Mapping[str, Any]) -> bool:
        return not ("a" in row and row.get("a") == row.get("d"))

    rows = build_covering_array(SMALL, are_different, strength)
    assert all(row.keys() == SMALL.keys() and are_different(row) for row in rows)
    seen = {found for row in rows for found in combinations(sorted(row.items()), strength)}
    assert seen == set(generate_combinations(SMALL, are_different, strength))


def test_combinations_that_given_rows_cover_get_no_new_rows() -> None:
    """If the given rows cover all combinations, no row is added."""
    rows = build_covering_array(SMALL, lambda _: True, 2)
    assert len(rows) <= 12
    assert build_covering_array(SMALL, lambda _: True, 2, given=rows) == []
