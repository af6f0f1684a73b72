"""The timed calls whose results are evaluated: one of each name, chosen at random after it has returned."""

import random
from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor

from attnbench.workers.fresh_values import Signs

__all__ = ["JudgedCall", "JudgedCalls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCall:
    """A timed call whose result may be evaluated."""

    # Values that were written into the inputs before the call.
    values: dict[str, Signs]
    # Copies of what the call returned: the tensors of the tuple, or the single tensor.
    result: tuple[Tensor | None, ...]
    # Whether the call was clean. Other calls do not count for a speed verdict.
    is_clean: bool


@dataclass(slots=True)
class JudgedCalls:
    """Keeps one call of each name: each clean call so far is as likely as another; without a clean call, any call is.

    All calls do the same work and take the same memory, so that none can tell whether an earlier one is kept. A call
    that reads in this object that an earlier one is kept gains nothing, because every later call may replace it.
    """

    kept: dict[str, JudgedCall] = field(init=False, default_factory=dict)
    _random: random.SystemRandom = field(init=False, default_factory=random.SystemRandom)
    # For each name: the number of calls among which the kept one was chosen.
    _count: Counter[str] = field(init=False, default_factory=Counter)

    def offer(self, name: str, call: JudgedCall) -> None:
        """Keep a call in place of the earlier one, or not."""
        last = self.kept.get(name)
        if last is not None and last.is_clean != call.is_clean:
            if last.is_clean:
                return
            self._count[name] = 0
        self._count[name] += 1
        if not self._random.randrange(self._count[name]):
            self.kept[name] = call
