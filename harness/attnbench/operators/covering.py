"""Covering arrays: few rows in which every combination of a few values occurs that is allowed to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from random import Random
from typing import Any

__all__ = ["combinations_of", "covering_array"]

Row = dict[str, Any]
Combination = tuple[tuple[str, Any], ...]


def covering_array(
    factors: Mapping[str, Sequence[Any]],
    allowed: Callable[[Row], bool],
    strength: int,
    given: Sequence[Row] = (),
) -> list[Row]:
    """Rows, beside the given ones, in which every allowed combination of ``strength`` values occurs.

    ``allowed`` judges partial rows; what it allows must be completable. Greedy: each row starts from a combination
    that is missing and takes, factor by factor, the value that covers most of what is missing.
    """
    order = Random(0)  # noqa: S311  # ties are broken alike at each run
    missing = dict.fromkeys(combinations_of(factors, allowed, strength))
    for row in given:
        _strike(missing, row, strength)
    rows: list[Row] = []
    while missing:
        row = dict(next(iter(missing)))
        left = [name for name in factors if name not in row]
        order.shuffle(left)
        for name in left:
            choices = [value for value in factors[name] if allowed(row | {name: value})]
            row[name] = max(choices, key=lambda value: (_gain(missing, row, name, value, strength), order.random()))
        _strike(missing, row, strength)
        rows.append({name: row[name] for name in factors})
    return rows


def combinations_of(
    factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool], strength: int
) -> Iterator[Combination]:
    """Every allowed combination of values of ``strength`` factors, in the order of the factors."""
    for names in combinations(sorted(factors), strength):
        for values in product(*(factors[name] for name in names)):
            found = tuple(zip(names, values, strict=True))
            if allowed(dict(found)):
                yield found


def _gain(missing: Mapping[Combination, None], row: Row, name: str, value: Any, strength: int) -> int:
    """How many missing combinations a value completes."""
    return sum(
        tuple(sorted([*others, (name, value)], key=_name)) in missing
        for others in combinations(row.items(), strength - 1)
    )


def _strike(missing: dict[Combination, None], row: Row, strength: int) -> None:
    for found in combinations(sorted(row.items(), key=_name), strength):
        missing.pop(found, None)


def _name(item: tuple[str, Any]) -> str:
    return item[0]
