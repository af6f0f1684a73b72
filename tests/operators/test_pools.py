"""Tests of the pools from which suites are supplemented, and of the arrays that they consist of."""

from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest

from attnbench.cases import COMPILED_MODES
from attnbench.operators.covering_array import build_restricted_arrays, generate_combinations
from attnbench.plugins.registry import load_operator

OPERATORS = ["multihead", "attention_core"]


def load(operator: str, module: str) -> ModuleType:
    """Return a module of an operator's package."""
    return import_module(f"attnbench.operators.{operator}.{module}")


@pytest.mark.parametrize("operator", OPERATORS)
def test_lists_equal_the_output_of_their_generator(
    operator: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No list is edited by hand, except those of the cases that fuzzing found and on which mutants fail."""
    generator = load(operator, "generate_cases")
    stored = generator.LISTS.folder
    monkeypatch.setattr(generator, "LISTS", replace(generator.LISTS, folder=tmp_path))
    generator.write_lists()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert "pool.txt" in names
    for name in names:
        message = f"run python -m {generator.__name__} and raise the version of LISTS ({name})"
        assert (tmp_path / name).read_text() == (stored / name).read_text(), message


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_pool_has_the_combinations_of_each_restriction(operator: str) -> None:
    """Its cases are eager, differ, and have every combination of the values that each restriction leaves."""
    one = load_operator(operator)
    covering, pool = one.covering, one.pool("full")
    assert covering is not None
    assert len(set(pool)) == len(pool) <= 2200
    assert not any(case.mode in COMPILED_MODES for case in pool)
    rows = [covering.case_to_row(case) for case in pool]
    for strength, left in load(operator, "restrictions").RESTRICTIONS:
        own = [row for row in rows if all(row[name] in values for name, values in left.items())]
        seen = {found for row in own for found in combinations(sorted(row.items(), key=lambda item: item[0]), strength)}
        fixed = {name: values[0] for name, values in left.items() if len(values) == 1}
        every = generate_combinations(
            {**covering.factors, **left}, lambda row, fixed=fixed: covering.is_allowed(fixed | row), strength
        )
        assert not set(every) - seen


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_pool_of_quick_ends_with_core(operator: str) -> None:
    """The cases of core follow those of the pool; the other suites have the pool alone."""
    one = load_operator(operator)
    pool = one.pool("full")
    assert one.pool("core") == pool
    assert one.pool("quick") == [*pool, *one.suite("core")]


def test_restricted_arrays_have_only_the_values_that_are_left() -> None:
    """Each array has its own values and strength."""
    factors = {"a": (1, 2, 3), "b": (1, 2), "c": (1, 2)}
    rows = build_restricted_arrays(
        factors, lambda row: row.get("a") != row.get("c"), [(1, {"a": (3,)}), (2, {"b": (2,)})]
    )
    first, second = rows[:2], rows[2:]
    assert {row["a"] for row in first} == {3}
    assert {row["b"] for row in second} == {2}
    assert {(row["a"], row["c"]) for row in second} == {(1, 2), (2, 1), (3, 1), (3, 2)}
