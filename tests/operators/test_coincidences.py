"""Tests of the cases in which sizes coincide."""

from importlib import import_module
from itertools import combinations
from types import ModuleType
from typing import Any

import pytest

from attnbench.operators.covering_array import build_covering_array, generate_combinations
from attnbench.plugins.registry import load_operator

OPERATORS = ["multihead", "attention_core"]
# The names of the sizes of a problem, without queries and keys.
SIZES = {"multihead": ("sequences", "num_heads", "head_dim", "embed_dim"), "attention_core": ("sequences", "head_dim")}


def load(operator: str, module: str) -> ModuleType:
    """Return a module of an operator's package."""
    return import_module(f"attnbench.operators.{operator}.{module}")


def build_rows(operator: str) -> list[dict[str, Any]]:
    """Return the rows of the second covering array of an operator's suite ``core``."""
    own = load(operator, "coincidences")
    return build_covering_array(own.COINCIDENT, own.is_coincident, 2)


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_coincidence_meets_every_value(operator: str) -> None:
    """Core has a case of each row, and the rows have every allowed pair of values; each coincidence is in some."""
    own, rows = load(operator, "coincidences"), build_rows(operator)
    convert = load(operator, "generate_cases").row_to_case
    assert {convert(own.resolve_row(row)) for row in rows} <= set(load_operator(operator).suite("core"))
    seen = {found for row in rows for found in combinations(sorted(row.items(), key=lambda item: item[0]), 2)}
    assert seen == set(generate_combinations(own.COINCIDENT, own.is_coincident, 2))
    assert {row["lengths"] for row in rows} == set(own.COINCIDENT["lengths"])


@pytest.mark.parametrize("operator", OPERATORS)
def test_sizes_are_equal_only_where_they_are_named(operator: str) -> None:
    """A number of queries or keys without a name equals no other size, and one with a name equals this size."""
    own = load(operator, "coincidences")
    convert = load(operator, "generate_cases").row_to_case
    for row in build_rows(operator):
        problem = convert(own.resolve_row(row)).problem
        for name, length in zip(row["lengths"], (problem.queries, problem.keys), strict=True):
            others = {getattr(problem, size) for size in SIZES[operator]} if problem.sequences > 1 else set()
            assert isinstance(name, str) or length not in others
            if name in ("batch", "heads", "head_dim", "embed_dim"):
                size = {"batch": "sequences", "heads": "num_heads"}.get(name, name)
                assert length == getattr(problem, size)
        assert (problem.queries == problem.keys) == (row["lengths"][0] == row["lengths"][1])


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_partial_row_is_allowed_if_an_allowed_row_contains_it(operator: str) -> None:
    """A length that no batch of a layout can equal is refused without the other factors."""
    own = load(operator, "coincidences")
    assert own.is_coincident({})
    assert all(own.is_coincident({"lengths": lengths}) for lengths in own.COINCIDENT["lengths"])
    batch = {"layout": (5, False)} if operator == "multihead" else {"batch": 7}
    assert own.is_coincident(batch)
    assert not own.is_coincident(batch | {"lengths": (129, 129)})


def test_as_many_sequences_as_heads_are_no_other_coincidence() -> None:
    """With as many sequences as heads, no length is named after one of the two; an unbatched case has no batch."""
    own = load("multihead", "coincidences")
    for lengths in (("batch", "heads"), ("heads", "heads"), ("batch", "batch")):
        assert not own.is_coincident({"layout": ("heads", True), "lengths": lengths})
    assert not own.is_coincident({"layout": (None, False), "lengths": ("batch", "batch")})
    assert own.is_coincident({"layout": ("heads", True), "lengths": ("head_dim", "head_dim")})
