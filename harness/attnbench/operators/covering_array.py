"""Covering arrays: few rows that contain every allowed combination of values of any two, or three, factors.

A row maps the name of each factor to one of the factor's values. A partial row lacks some factors.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from random import Random
from typing import Any

__all__ = ["build_covering_array", "build_restricted_arrays", "generate_combinations"]

Row = dict[str, Any]
Combination = tuple[tuple[str, Any], ...]


def build_covering_array(
    factors: Mapping[str, Sequence[Any]],
    allowed: Callable[[Row], bool],
    strength: int,
    given: Sequence[Row] = (),
) -> list[Row]:
    """Build rows that contain every allowed combination of values of any ``strength`` factors.

    Combinations that the ``given`` rows contain need not be covered again. ``allowed`` is also called on partial rows,
    and must refuse a partial row that no allowed complete row contains. The algorithm is greedy: each row starts from a
    missing combination. Each further factor gets the value with which the row covers the most missing combinations.
    """
    order = Random(0)  # noqa: S311  # a fixed seed breaks ties in the same way on each run
    missing = dict.fromkeys(generate_combinations(factors, allowed, strength))
    for row in given:
        _remove_covered(missing, row, strength)
    rows: list[Row] = []
    while missing:
        row = dict(next(iter(missing)))
        left = [name for name in factors if name not in row]
        order.shuffle(left)
        for name in left:
            choices = [value for value in factors[name] if allowed(row | {name: value})]
            row[name] = max(
                choices, key=lambda value: (_count_new(missing, row, name, value, strength), order.random())
            )
        _remove_covered(missing, row, strength)
        rows.append({name: row[name] for name in factors})
    return rows


def build_restricted_arrays(
    factors: Mapping[str, Sequence[Any]],
    allowed: Callable[[Row], bool],
    restrictions: Sequence[tuple[int, Mapping[str, Sequence[Any]]]],
) -> list[Row]:
    """Build the covering array of each restriction, one after another.

    A restriction is a strength and, for some factors, the values that are left. A value that is allowed with no value
    that is left of some other factor must not be left either, unless only one value of that factor is left.
    """
    rows = []
    for strength, left in restrictions:
        fixed = {name: values[0] for name, values in left.items() if len(values) == 1}
        rows += build_covering_array({**factors, **left}, partial(_is_allowed_with, allowed, fixed), strength)
    return rows


def _is_allowed_with(allowed: Callable[[Row], bool], fixed: Row, row: Row) -> bool:
    return allowed({**fixed, **row})


def generate_combinations(
    factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool], strength: int
) -> Iterator[Combination]:
    """Yield every allowed combination of values of any ``strength`` factors, in alphabetical order of factor names."""
    for names in combinations(sorted(factors), strength):
        for values in product(*(factors[name] for name in names)):
            found = tuple(zip(names, values, strict=True))
            if allowed(dict(found)):
                yield found


def _count_new(missing: Mapping[Combination, None], row: Row, name: str, value: Any, strength: int) -> int:
    """Return the number of missing combinations that the row newly covers if factor ``name`` has this value."""
    return sum(
        tuple(sorted([*others, (name, value)], key=_get_name)) in missing
        for others in combinations(row.items(), strength - 1)
    )


def _remove_covered(missing: dict[Combination, None], row: Row, strength: int) -> None:
    for found in combinations(sorted(row.items(), key=_get_name), strength):
        missing.pop(found, None)


def _get_name(item: tuple[str, Any]) -> str:
    return item[0]
