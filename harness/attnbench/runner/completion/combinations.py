"""The allowed combinations of factor values of a covering array, as boolean arrays.

Every value of every factor has a number. A set of combinations of ``order`` values is a symmetric boolean array with
``order`` axes, indexed by the numbers of the values. Only the elements of allowed combinations have a meaning.
"""

from collections.abc import Iterable, Mapping
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnbench.interface import Covering
from attnbench.operators.covering_array import generate_combinations

__all__ = ["Combinations", "Flags", "Numbers", "Row"]

# A row of a covering array: for each factor, in order, the number that stands for the factor's value.
Row = tuple[int, ...]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]


class Combinations:
    """The factors of a covering array, and every allowed combination of at most ``strength`` values."""

    def __init__(self, covering: Covering, strength: int) -> None:
        self.covering = covering
        self.strength = strength
        self.values = [(name, value) for name, values in covering.factors.items() for value in values]
        self._numbers = {pair: number for number, pair in enumerate(self.values)}
        # For each factor, in order, the numbers of its values.
        self.choices: list[list[int]] = [
            [self._numbers[name, value] for value in values] for name, values in covering.factors.items()
        ]
        # For each value, the index of its factor in ``choices``.
        self.factor_of = [place for place, choices in enumerate(self.choices) for _ in choices]
        # Number that stands for every value outside the factors' lists. No allowed combination contains this number.
        self.unlisted = len(self.values)
        # Allowed combinations; the key is the number of values in a combination.
        self.allowed: dict[int, Flags] = {order: self._find_allowed(order) for order in range(1, strength + 1)}

    def encode(self, row: Mapping[str, Any]) -> Row:
        """Return the numbers of a row's values."""
        return tuple(self._numbers.get((name, row.get(name)), self.unlisted) for name in self.covering.factors)

    def decode(self, row: Iterable[int]) -> dict[str, Any]:
        """Return the values of a complete or partial row, by factor; unlisted values are left out."""
        return dict(self.values[number] for number in row if number != self.unlisted)

    def make_flags(self, order: int) -> Flags:
        """Return an empty set of combinations of ``order`` values."""
        return np.zeros((len(self.values) + 1,) * order, dtype=bool)

    def mark(self, flags: Flags, rows: Iterable[Row]) -> None:
        """Add every combination that the rows contain to the set ``flags``."""
        for row in rows:
            flags[np.ix_(*[row] * flags.ndim)] = True

    def count(self, flags: Flags) -> int:
        """Return the number of allowed combinations in a set."""
        return len(self.list(flags))

    def list(self, flags: Flags) -> Numbers:
        """Return the allowed combinations in a set as an array; each row has one combination's ascending numbers."""
        found = np.argwhere(flags & self.allowed[flags.ndim])
        return found[(np.diff(found, axis=1) > 0).all(axis=1)]

    def have_parts_in(self, flags: Flags) -> Flags:
        """Return the allowed combinations with one more value than those in ``flags``, if all their parts are there."""
        order = flags.ndim + 1
        whole = self.allowed[order].copy()
        for left_out in range(order):
            whole &= np.expand_dims(flags, left_out)
        return whole

    def _find_allowed(self, order: int) -> Flags:
        flags = self.make_flags(order)
        found = generate_combinations(self.covering.factors, self.covering.is_allowed, order)
        numbers = np.array([[self._numbers[pair] for pair in one] for one in found], dtype=np.int64)
        for axes in permutations(range(order)):
            flags[tuple(numbers.reshape(-1, order)[:, list(axes)].T)] = True
        return flags
