"""Which combinations of values an implementation takes, and few cases that cover these combinations.

The search is greedy and seeded. It first finds which single values are taken, then which pairs, and so on: a
combination cannot be taken if a part of the combination is not taken. If all parts are taken, the combination counts as
not taken after ``MOST_REFUSED`` refusals of rows that were drawn for it. A row is taken if the implementation supports
its case. Rows are drawn near rows that are taken, because an implementation with many restrictions takes almost no row
that is drawn from all values.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from random import Random

import numpy as np

from attnbench.runner.completion.combinations import Combinations, Flags, Numbers, Row

__all__ = ["MOST_ASKED", "MOST_REFUSED", "Ask", "Search"]

# Number of refused rows after which the combination for which they were drawn counts as not taken.
MOST_REFUSED = 200
# Largest number of rows that an implementation is asked about. The key is the number of values in a combination. The
# most restricted implementation that was measured needs 7,000 rows for pairs and 8,000 for triples; an implementation
# that refuses without a pattern needs 20,000. 10,000 answers take about 2 s.
MOST_ASKED = {1: 20_000, 2: 40_000, 3: 120_000}
# Largest number of drawn rows in one request. The answers are known when the rows of the next request are drawn.
BATCH = 256
# Largest number of greedily built rows in one request. Each row is built as if all earlier rows were taken.
GREEDY_BATCH = 48
# Number of greedy attempts for a combination. If they fail, rows are drawn at random for the combination.
GREEDY_TRIES = 2
# Share of the changed values that are drawn from all values of a factor. The rest is drawn from rows that are taken.
WILD = 0.25
# Number of attempts to draw a row that was not asked about before.
REDRAWS = 12

# A function that answers for each row: the row of the case that would be called, whether this case is supported, and
# whether it can be run. The answer for a row without a case is None. Answers may be missing at the end of the list.
Ask = Callable[[Sequence[Row]], Sequence["tuple[Row, bool, bool] | None"]]


class Search:
    """The answers of one implementation so far, and what follows from them."""

    def __init__(self, combinations: Combinations, ask: Ask, seed: str) -> None:
        self._combinations = combinations
        self._ask = ask
        self._random = Random(seed)  # noqa: S311  # cases are drawn in the same way on each run
        self._asked: set[Row] = set()
        self._count = 0
        self._exhausted = False
        # ``_pool``: rows without unlisted values that are taken and can be run. ``_array``: the rows of ``_pool`` as an
        # array of shape (rows, factors); None until it is needed.
        self._pool: list[Row] = []
        self._array: Numbers | None = None
        # Rows near which further rows are drawn: all rows that are taken.
        self._seeds: list[Row] = []
        # For each target (the combination for which a row is drawn), an endless iterator of targets with one value
        # more.
        self._partners: dict[tuple[int, ...], Iterator[Sequence[int]]] = {}
        orders = range(1, combinations.strength + 1)
        # ``taken``: the combinations that are taken, by their number of values. ``_refused``: for each combination, the
        # number of rows that were drawn for it and refused; the index of a combination is its ascending numbers.
        self.taken: dict[int, Flags] = {order: combinations.make_flags(order) for order in orders}
        self._refused = {order: np.zeros_like(self.taken[order], dtype=np.int32) for order in orders}

    @property
    def exhausted(self) -> bool:
        """Whether the search ended early, because ``MOST_ASKED`` was reached or answers are missing."""
        return self._exhausted

    @property
    def count(self) -> int:
        """Number of rows in all requests so far."""
        return self._count

    def add_listed(self, row: Row, *, runnable: bool) -> None:
        """Add the row of a supported case of the suite; ``runnable`` says whether the case can be run."""
        self._add_taken(row, runnable=runnable)

    def run(self, covered: Flags) -> list[Row]:
        """Return rows that cover the combinations that are taken and not in ``covered``.

        A combination is left out if no row with it is known that can be run. The greedily built rows come first.
        """
        strength = self._combinations.strength
        for order in range(1, strength):
            self._settle(order)
        missing = self._combinations.allowed[strength] & ~covered
        chosen = self._build_rows(missing.copy())
        self._settle(strength, missing)
        uncovered = missing.copy()
        for row in chosen:
            uncovered[np.ix_(*[row] * strength)] = False
        chosen += self._pick_rows(uncovered)
        return drop_redundant(chosen, missing)

    def _add_taken(self, row: Row, *, runnable: bool) -> None:
        for flags in self.taken.values():
            self._combinations.mark(flags, [row])
        self._seeds.append(row)
        if runnable and self._combinations.unlisted not in row:
            self._pool.append(row)
            self._array = None

    def _ask_rows(self, rows: Sequence[Row]) -> list[Row]:
        """Ask about rows, add the rows that are taken, and return those of them that can be run."""
        limit = MOST_ASKED[self._combinations.strength] - self._count
        asked = list(dict.fromkeys(rows))[:limit]
        self._asked.update(asked)
        self._count += len(asked)
        answers = self._ask(asked)
        self._exhausted = self._exhausted or len(answers) < len(asked) or limit <= len(rows)
        found = []
        for own, taken, runnable in (answer for answer in answers if answer is not None):
            if taken:
                self._add_taken(own, runnable=runnable)
                found += [own] if runnable else []
        return found

    def _find_open(self, order: int, among: Flags | None = None) -> Numbers:
        """Return the combinations that count neither as taken nor as not taken, as an array with one row each."""
        whole = self._combinations.allowed[order]
        if order > 1:
            whole = self._combinations.have_parts_in(self.taken[order - 1])
        whole = whole & ~self.taken[order] & (self._refused[order] < MOST_REFUSED)
        return self._combinations.list(whole if among is None else whole & among)

    def _settle(self, order: int, among: Flags | None = None) -> None:
        """Draw rows until every combination of ``order`` values counts as taken or as not taken.

        A refused row counts only against the combination for which it was drawn. It does not count against the other
        combinations in the row, because they may not be the cause of the refusal.
        """
        refused = self._refused[order]
        while not self._exhausted and len(found := self._find_open(order, among)):
            each = max(1, min(BATCH // len(found), MOST_REFUSED // 4))
            rows: list[Row] = []
            targets = found[:BATCH].tolist()
            for target in targets:
                first = int(refused[tuple(target)])
                drawn = (
                    self._draw_new(self._add_partner(target) if n % 2 else target) for n in range(first, first + each)
                )
                # If no new row can be drawn for a target, this counts as a refused row.
                rows += [row for row in drawn if row is not None]
            had_seeds = bool(self._seeds)
            self._ask_rows(rows)
            refused[tuple(np.array(targets).T)] += each
            if self._seeds and not had_seeds:
                # From now on, rows are drawn near a row that is taken. The refusals of earlier rows do not count.
                refused[...] = 0

    def _build_rows(self, missing: Flags) -> list[Row]:
        """Return rows that are taken, each built to cover many missing combinations.

        The combinations in these rows are removed from ``missing``.
        """
        strength = self._combinations.strength
        tries = np.zeros_like(self._refused[strength])
        chosen: list[Row] = []
        while not self._exhausted:
            whole = self._combinations.have_parts_in(self.taken[strength - 1]) if strength > 1 else missing
            targets = self._combinations.list(missing & whole & (tries < GREEDY_TRIES))
            if not len(targets):
                break
            tentative = missing.copy()
            rows: list[Row] = []
            for target in targets.tolist():
                if len(rows) == GREEDY_BATCH:
                    break
                if not tentative[tuple(target)]:
                    continue
                tries[np.ix_(*[target] * strength)] += 1
                row = self._build(target, tentative)
                if row is not None and row not in self._asked:
                    rows.append(row)
                    tentative[np.ix_(*[row] * strength)] = False
            for row in self._ask_rows(rows):
                index = np.ix_(*[row] * strength)
                if missing[index].any():
                    chosen.append(row)
                    missing[index] = False
        return chosen

    def _build(self, target: Sequence[int], missing: Flags) -> Row | None:
        """Return a row that contains the target, built value by value.

        Each added value is taken in a pair with every value that the row already has. Of such values, the one that adds
        the most missing combinations is chosen. The result is None if a factor has no such value, or if the row is not
        allowed.
        """
        combinations, order = self._combinations, self._combinations.strength
        fits = self.taken[2] if order > 1 else None
        row = {combinations.factor_of[number]: number for number in target}
        left = [place for place in range(len(combinations.choices)) if place not in row]
        self._random.shuffle(left)
        for place in left:
            chosen = list(row.values())
            numbers = np.array(combinations.choices[place])
            if fits is not None:
                numbers = numbers[fits[numbers][:, chosen].all(axis=1)]
            if not len(numbers):
                return None
            new = missing[np.ix_(*[numbers], *[np.array(chosen)] * (order - 1))].reshape(len(numbers), -1).sum(axis=1)
            ties = numbers[new == new.max()]
            row[place] = int(ties[self._random.randrange(len(ties))])
        made = tuple(row[place] for place in range(len(combinations.choices)))
        return made if self._is_allowed(made) else None

    def _pick_rows(self, missing: Flags) -> list[Row]:
        """Return rows of ``_pool`` that cover missing combinations; remove the combinations from ``missing``."""
        strength = self._combinations.strength
        chosen: list[Row] = []
        for target in self._combinations.list(missing & self.taken[strength]).tolist():
            if not missing[tuple(target)]:
                continue
            rows = self._find_rows(target)
            if not rows:
                continue
            best = max(rows, key=lambda row: int(missing[np.ix_(*[row] * strength)].sum()))
            chosen.append(best)
            missing[np.ix_(*[best] * strength)] = False
        return chosen

    def _find_rows(self, target: Sequence[int]) -> list[Row]:
        """Return the rows of ``_pool`` that contain a combination."""
        if not self._pool:
            return []
        if self._array is None:
            self._array = np.array(self._pool)
        columns = [self._combinations.factor_of[number] for number in target]
        return [self._pool[place] for place in np.flatnonzero((self._array[:, columns] == target).all(axis=1))]

    def _draw_new(self, target: Sequence[int]) -> Row | None:
        """Return a new row that contains the target, or None if ``REDRAWS`` attempts found none."""
        for attempt in range(REDRAWS):
            row = self._draw(target, attempt)
            if row is not None and row not in self._asked:
                # Do not draw the row again for another target of the same batch.
                self._asked.add(row)
                return row
        return None

    def _add_partner(self, target: Sequence[int]) -> Sequence[int]:
        """Return the target with one more value, at each call the next one; a target of full length is unchanged.

        So a target is also found to be taken if it is taken only together with a certain value.
        """
        if len(target) >= self._combinations.strength:
            return target
        if tuple(target) not in self._partners:
            whole = self._combinations.allowed[len(target) + 1][tuple(target)]
            self._partners[tuple(target)] = cycle(
                [[*target, int(number)] for number in np.flatnonzero(whole)] or [target]
            )
        return next(self._partners[tuple(target)])

    def _draw(self, target: Sequence[int], attempt: int) -> Row | None:
        """Return an allowed row that contains the target, near a row that is taken; None if this draw gives none."""
        combinations, random = self._combinations, self._random
        # Before a first row is taken, rows are drawn near the row of the first, plainest value of each factor.
        seeds = self._seeds or [tuple(choices[0] for choices in combinations.choices)]
        row = list(random.choice(seeds))
        # The row differs from a taken row in few factors or in many, because a refusal may depend on few or on many.
        changes = random.choice((0, 0, 1, 2, 4, len(row))) + attempt // 4
        for place in random.sample(range(len(row)), min(changes, len(row))):
            wild = not self._seeds or random.random() < WILD
            row[place] = random.choice(combinations.choices[place] if wild else [random.choice(seeds)[place]])
        fixed = {combinations.factor_of[number] for number in target}
        for number in target:
            row[combinations.factor_of[number]] = number
        pairs = combinations.allowed.get(2)
        for place, choices in enumerate(combinations.choices):
            own = row[place]
            if place in fixed or (own != combinations.unlisted and self._fits(own, target, pairs)):
                continue
            fitting = [number for number in choices if self._fits(number, target, pairs)]
            liked = [number for number in fitting if self.taken[1][number]]
            if not fitting:
                return None
            row[place] = random.choice(liked or fitting)
        made = tuple(row)
        return made if self._is_allowed(made) else None

    def _fits(self, number: int, target: Sequence[int], pairs: Flags | None) -> bool:
        return pairs is None or all(pairs[number, other] for other in target)

    def _is_allowed(self, row: Row) -> bool:
        return bool(self._combinations.covering.is_allowed(self._combinations.decode(row)))


def drop_redundant(rows: Sequence[Row], missing: Flags) -> list[Row]:
    """Return the rows, except those whose combinations in ``missing`` are all in other returned rows."""
    counts = np.zeros(missing.shape, dtype=np.int32)
    for row in rows:
        counts[np.ix_(*[row] * missing.ndim)] += 1
    kept = []
    for row in reversed(rows):
        index = np.ix_(*[row] * missing.ndim)
        if (counts[index][missing[index]] > 1).all():
            counts[index] -= 1
        else:
            kept.append(row)
    return kept[::-1]
