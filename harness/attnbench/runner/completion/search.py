"""Which combinations of values an implementation takes, and few cases that cover them.

The search is greedy and seeded. It first settles which single values are taken, then which pairs, and so on: a
combination cannot be taken if a part of it is not. A combination whose parts are taken counts as not taken once
``MOST_REFUSED`` cases that were drawn for it were refused. Rows are drawn close to rows that are known to be taken,
because an implementation with many restrictions takes almost no row that is drawn from all values.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from random import Random

import numpy as np

from attnbench.runner.completion.combinations import Combinations, Flags, Numbers, Row

__all__ = ["MOST_ASKED", "MOST_REFUSED", "Ask", "Search"]

# Drawn cases with a combination that are declared unsupported until the combination counts as not taken.
MOST_REFUSED = 200
# Most drawn cases that an implementation is asked about, by the number of combined values. The narrowest implementation
# that was measured needs 7,000 for pairs and 8,000 for triples, and refusals without a pattern need 20,000. 10,000
# answers take about 2 s.
MOST_ASKED = {1: 20_000, 2: 40_000, 3: 120_000}
# Rows that are asked at once. The next rows are drawn with the knowledge of these answers.
BATCH = 256
# Rows that are built greedily at once. Each leaves the next ones fewer missing combinations, if it is taken.
GREEDY_BATCH = 48
# Greedily built rows per combination, before rows are drawn for it.
GREEDY_TRIES = 2
# Share of the changed values that are drawn from all values, and not from rows that are taken.
WILD = 0.25
# Draws of one row before it counts as a row that does not exist.
REDRAWS = 12

# Return, for each row, the row of the case that is called, and whether this case is taken, and whether it can be run.
# An answer is None for a row without a case, and for rows that were not asked.
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
        # Complete rows that are taken and can be run; the same as an array: (rows, factors).
        self._pool: list[Row] = []
        self._array: Numbers | None = None
        # Rows near which further rows are drawn: ``_pool``, and listed rows with unlisted values.
        self._seeds: list[Row] = []
        # Larger targets of each target, without end.
        self._partners: dict[tuple[int, ...], Iterator[Sequence[int]]] = {}
        orders = range(1, combinations.strength + 1)
        # Combinations in a row that is taken, by order, and number of rows that were drawn for each combination and
        # refused. A combination is named by its ascending numbers there.
        self.taken: dict[int, Flags] = {order: combinations.make_flags(order) for order in orders}
        self._refused = {order: np.zeros_like(self.taken[order], dtype=np.int32) for order in orders}

    @property
    def exhausted(self) -> bool:
        """Whether the search ended early, because no further case may be asked."""
        return self._exhausted

    @property
    def count(self) -> int:
        """Number of drawn rows that were asked."""
        return self._count

    def add_listed(self, row: Row, *, runnable: bool) -> None:
        """Add the row of a listed case that is taken."""
        self._add_taken(row, runnable=runnable)

    def run(self, covered: Flags) -> list[Row]:
        """Return rows that cover every combination that is taken and not in ``covered``; the first ones cover most."""
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
        """Ask about rows, add the answers, and return the rows that are taken and can be run."""
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
        """Return the combinations of which it is not settled whether they are taken: (combinations, values)."""
        whole = self._combinations.allowed[order]
        if order > 1:
            whole = self._combinations.have_parts_in(self.taken[order - 1])
        whole = whole & ~self.taken[order] & (self._refused[order] < MOST_REFUSED)
        return self._combinations.list(whole if among is None else whole & among)

    def _settle(self, order: int, among: Flags | None = None) -> None:
        """Draw rows until every combination of ``order`` values counts as taken or as not taken.

        A refused row counts against the combination for which it was drawn, and against no other that it contains,
        because the refusal may not be theirs.
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
                # A row that cannot be drawn, because all rows near the known ones were asked, counts as refused.
                rows += [row for row in drawn if row is not None]
            had_seeds = bool(self._seeds)
            self._ask_rows(rows)
            refused[tuple(np.array(targets).T)] += each
            if self._seeds and not had_seeds:
                # Only from now on, rows are drawn near one that is taken.
                refused[...] = 0

    def _build_rows(self, missing: Flags) -> list[Row]:
        """Return rows that are taken, built to cover many missing combinations each; remove these from ``missing``."""
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
        """Return a row with the target whose values are taken in pairs; each value adds the most missing combinations.

        None if the values so far leave no value for a factor.
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
        """Return rows of the pool that cover the missing combinations that are taken."""
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
        """Return the rows of the pool that contain a combination."""
        if not self._pool:
            return []
        if self._array is None:
            self._array = np.array(self._pool)
        columns = [self._combinations.factor_of[number] for number in target]
        return [self._pool[place] for place in np.flatnonzero((self._array[:, columns] == target).all(axis=1))]

    def _draw_new(self, target: Sequence[int]) -> Row | None:
        """Return a row with the target that was not asked, or None if ``REDRAWS`` draws found none."""
        for attempt in range(REDRAWS):
            row = self._draw(target, attempt)
            if row is not None and row not in self._asked:
                # Do not draw the row again for another target of the same batch.
                self._asked.add(row)
                return row
        return None

    def _add_partner(self, target: Sequence[int]) -> Sequence[int]:
        """Return a target with one value more, each value in its turn: one that is taken only with another is found."""
        if len(target) >= self._combinations.strength:
            return target
        if tuple(target) not in self._partners:
            whole = self._combinations.allowed[len(target) + 1][tuple(target)]
            self._partners[tuple(target)] = cycle(
                [[*target, int(number)] for number in np.flatnonzero(whole)] or [target]
            )
        return next(self._partners[tuple(target)])

    def _draw(self, target: Sequence[int], attempt: int) -> Row | None:
        """Return an allowed row with the target, near a row that is taken, or None if the draw is not allowed."""
        combinations, random = self._combinations, self._random
        # As long as nothing is taken, rows are drawn near the first value of each factor, which is the plainest one.
        seeds = self._seeds or [tuple(choices[0] for choices in combinations.choices)]
        row = list(random.choice(seeds))
        # A row differs from a taken one in few factors or in many, because either may be what a refusal depends on.
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
    """Return the rows without those whose missing combinations are all covered by the other rows as well."""
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
