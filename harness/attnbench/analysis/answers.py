"""The answer to "what to use here": the implementation whose worst case against all others is smallest.

Regret is the time of the chosen implementation divided by the time of the fastest one, minus 1. Of the implementations
that may be chosen, the answer is the one with the smallest upper bound on its regret: the largest of the bounds of its
time over that of another one.

Which implementation is the fastest is not known, but it is one and the same in every measurement. The told bound is too
small only if the bound of the chosen implementation over the fastest one is. These are as many pairs as there are other
implementations, whichever is chosen.
Source: Hsu, Multiple Comparisons (1996), chapter 4, comparisons with the best.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from attnbench.analysis.pairs import PairBounds
from attnbench.analysis.speed_verdict import EFFECT

__all__ = ["DECIDED", "Answer", "Unbounded", "choose", "list_possible"]

# Largest bound on regret with which an answer counts as decided: as many per cent as a speed verdict calls the same.
DECIDED = EFFECT
# Why an answer has no bound:
# ``alone``: no other implementation that may be chosen was timed with it.
# ``one_process``: a single process timed the call.
# ``disturbed``: too many processes were disturbed.
# ``control``: the A/A control shows a difference, so the times of this call cannot be trusted.
# ``fallback``: it was not chosen by its time, but named by the user for where the bound is too large.
Unbounded = Literal["alone", "one_process", "disturbed", "control", "fallback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to use for one timed call, with the bound on its regret."""

    name: str
    # Upper bound on the regret: 0.006 says "at most 0.6 % behind any other". None: there is no bound.
    regret: float | None
    # Why there is no bound; None if there is one.
    unbounded: Unbounded | None = None
    # The other implementation at which the bound is reached; empty without others.
    behind: str = ""
    # Number of processes that timed the call.
    processes: int = 0

    @property
    def decided(self) -> bool:
        """Whether the bound is at most 1 %; an answer that is not decided is an answer all the same."""
        return self.regret is not None and self.regret <= DECIDED

    @property
    def more_would_help(self) -> bool:
        """Whether more processes would lower the bound, or give one."""
        return not self.decided and self.unbounded in (None, "one_process", "disturbed")


def choose(bounds: PairBounds, times_ns: Mapping[str, float], names: Collection[str]) -> Answer | None:
    """Return which of ``names`` to use on one case; None if ``bounds`` has none of them.

    ``times_ns`` are the times by which implementations without a bound are ranked.
    """
    timed = [name for name in bounds.over if name in names]
    if not timed:
        return None
    worst = {name: _find_worst_case(bounds, name, timed) for name in timed}
    name = min(timed, key=lambda one: (worst[one][0], times_ns.get(one, math.inf)))
    bound, behind = worst[name]
    unbounded = _explain_unbounded(bounds, bound, behind)
    return Answer(
        name=name,
        # The fastest implementation has the regret 0, and not the gain over the second.
        regret=None if unbounded else max(bound - 1, 0.0),
        unbounded=unbounded,
        behind=behind,
        processes=bounds.processes,
    )


def list_possible(bounds: PairBounds) -> list[str]:
    """Return the implementations that may be the fastest: no other is faster beyond doubt by more than ``DECIDED``."""
    return [
        name
        for name in bounds.over
        if all(own.get(name, math.inf) >= 1 - DECIDED for other, own in bounds.over.items() if other != name)
    ]


def _find_worst_case(bounds: PairBounds, name: str, names: Collection[str]) -> tuple[float, str]:
    """Return the largest bound of an implementation over another one, and the other one; empty without others."""
    return max(((bounds.over[name][other], other) for other in names if other != name), default=(math.inf, ""))


def _explain_unbounded(bounds: PairBounds, bound: float, behind: str) -> Unbounded | None:
    if not behind:
        return "alone"
    if bounds.control_failed:
        return "control"
    if math.isfinite(bound):
        return None
    return "one_process" if bounds.processes == 1 else "disturbed"
