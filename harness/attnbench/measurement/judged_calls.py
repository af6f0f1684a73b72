"""The timed calls whose results are judged: one of each name, chosen at random after it has returned."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["JudgedCalls"]

Call = TypeVar("Call")


@dataclass(slots=True)
class JudgedCalls(Generic[Call]):
    """Keeps one call of each name: each clean call so far is as likely as another; without a clean call, any call is.

    All calls do the same work and take the same memory, so that none can tell whether an earlier one is kept. A call
    that reads in this object that an earlier one is kept gains nothing, because every later call may replace it.
    """

    kept: dict[str, Call] = field(init=False, default_factory=dict)
    _random: random.SystemRandom = field(init=False, default_factory=random.SystemRandom)
    # For each name: whether the kept call is clean, and the number of calls among which it was chosen.
    _is_clean: dict[str, bool] = field(init=False, default_factory=dict)
    _count: Counter[str] = field(init=False, default_factory=Counter)

    def offer(self, name: str, call: Call, *, is_clean: bool = True) -> None:
        """Keep a call in place of the earlier one, or not; calls that are not clean do not count for a verdict."""
        last_is_clean = self._is_clean.setdefault(name, is_clean)
        if last_is_clean != is_clean:
            if last_is_clean:
                return
            self._is_clean[name] = True
            self._count[name] = 0
        self._count[name] += 1
        if not self._random.randrange(self._count[name]):
            self.kept[name] = call
