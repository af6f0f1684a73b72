"""The combinations of factor values in cases, and few cases that contain given ones; a set is an integer's bits."""

from collections.abc import Iterable, Mapping
from functools import lru_cache, reduce
from heapq import heapify, heappop, heapreplace
from itertools import combinations
from operator import or_

from attnbench.cases import Case
from attnbench.operators.covering_array import generate_combinations
from attnbench.plugins.registry import load_operator

__all__ = ["Combinations", "choose_cover", "find_combinations"]


class Combinations:
    """Every allowed combination of values of ``strength`` factors of an operator's covering array."""

    def __init__(self, operator: str, strength: int) -> None:
        found = load_operator(operator)
        if found.covering is None:
            raise ValueError(f"{operator} has no covering array")
        self._covering, self._strength = found.covering, strength
        self._problems = {operator: found.problem}
        allowed = generate_combinations(self._covering.factors, self._covering.is_allowed, strength)
        self._numbers = {combination: number for number, combination in enumerate(allowed)}
        self._encoded: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def encode(self, case: str) -> int:
        """Return the combinations in a case; none if its row is not allowed, as with random outputs."""
        if case not in self._encoded:
            factors, bits = self._covering.factors, bytearray(len(self) // 8 + 1)
            whole = self._covering.case_to_row(Case.parse(case, self._problems))
            row = {name: value for name, value in whole.items() if value in factors[name]}
            items = sorted(row.items(), key=lambda item: item[0]) if self._covering.is_allowed(row) else []
            for combination in combinations(items, self._strength):
                if (number := self._numbers.get(combination)) is not None:
                    bits[number // 8] |= 1 << number % 8
            self._encoded[case] = int.from_bytes(bits, "little")
        return self._encoded[case]

    def join(self, cases: Iterable[str]) -> int:
        """Return the combinations that are in any of the cases."""
        return reduce(or_, map(self.encode, cases), 0)

    def count(self, cases: Iterable[str]) -> int:
        """Return the number of combinations that are in any of the cases."""
        return self.join(cases).bit_count()


@lru_cache(maxsize=4)
def find_combinations(operator: str, strength: int) -> Combinations:
    """Return the combinations of an operator, with those of the cases that were encoded before."""
    return Combinations(operator, strength)


def choose_cover(cases: Mapping[str, int], missing: int) -> list[str]:
    """Return few of the cases that together contain each of the missing combinations that some case contains.

    ``cases`` has the combinations of each case. The next case is the one with the most missing combinations, and of
    equal ones the first.
    """
    names = list(cases)
    # The count of a case is an upper bound: combinations that were covered since may be among those counted.
    waiting = [(-(cases[name] & missing).bit_count(), place) for place, name in enumerate(names)]
    heapify(waiting)
    chosen = []
    while waiting and waiting[0][0]:
        _, place = waiting[0]
        count = (cases[names[place]] & missing).bit_count()
        heapreplace(waiting, (-count, place))
        if waiting[0] == (-count, place) and count:
            heappop(waiting)
            chosen.append(names[place])
            missing &= ~cases[names[place]]
    return chosen
