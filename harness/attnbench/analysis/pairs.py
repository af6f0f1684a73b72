"""Bounds on the ratio of the times of any two implementations that were timed in the same processes.

The ratio of two implementations is taken from their own interleaved calls, and not through the baseline.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from attnbench.analysis.speed_verdict import ENOUGH, OWN_LOSSES, Baseline, splits_cycles
from attnbench.analysis.stats import CleanCalls, Divisor, bound_median, choose_measure
from attnbench.records.types import Timing

__all__ = ["RISK", "PairBounds", "bound_pairs"]

# Largest probability that any of the bounds of the fastest implementation is too small.
RISK = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBounds:
    """Upper bounds of the time of each implementation over that of each other one, on one case."""

    # By implementation, and by the other one; infinite where too few processes count.
    over: Mapping[str, Mapping[str, float]]
    # Number of processes that timed the case.
    processes: int
    # Whether the A/A control shows a difference between two copies of the baseline: then no bound can be trusted.
    control_failed: bool = False


def bound_pairs(timings: Mapping[str, Timing], baseline: str | None, names: Collection[str]) -> PairBounds:
    """Return the bounds of the implementations in ``names`` that were timed.

    ``timings`` are those of one run and case, by implementation, with their samples. ``baseline`` names the
    implementation whose timing has the A/A control: a second copy, whose calls count as its own.

    Each pair has an equal part of ``RISK``: there are as many pairs with the fastest implementation as other ones.
    """
    timed = [name for name in timings if name in names]
    tail = RISK / max(len(timed) - 1, 1)
    measure = choose_measure(*timings.values())
    calls = {name: CleanCalls(timings[name], measure) for name in timed}
    divisors = {name: Divisor(_list_bases(calls[name], is_baseline=name == baseline)) for name in timed}
    over = {
        name: {other: _bound(calls[name], calls[other], divisors[other], tail) for other in timed if other != name}
        for name in timed
    }
    return PairBounds(
        over=over,
        processes=max((sum(map(bool, timings[name].samples_ns)) for name in timed), default=0),
        control_failed=_has_failed_control(timings, baseline),
    )


def _list_bases(calls: CleanCalls, *, is_baseline: bool) -> list[CleanCalls]:
    """Return the calls by which others are divided; those of the baseline and of its copy count alike."""
    own, twin = calls.timing, calls.timing.twin
    if not is_baseline or twin is None or not splits_cycles(own.cycles, twin.cycles):
        return [calls]
    return [calls, CleanCalls(twin, calls.measure)]


def _bound(own: CleanCalls, other: CleanCalls, divisor: Divisor, tail: float) -> float:
    """Return the upper bound of the time of ``own`` over the time of ``other``.

    It is infinite if too few processes count, or if ``own`` may have chosen those that count: it was disturbed in too
    many processes in which ``other`` was not.
    """
    both = zip(own.timing.samples_ns, other.timing.samples_ns, strict=False)
    ratios = {number: divisor.divide(number, own) for number, calls in enumerate(both) if all(calls)}
    counted = [ratio for ratio in ratios.values() if ratio is not None]
    lost = sum(divisor.is_clean(number) for number, ratio in ratios.items() if ratio is None)
    if len(counted) < max(1, min(ENOUGH, len(ratios))) or lost > OWN_LOSSES * len(ratios):
        return math.inf
    return bound_median(counted, tail)


def _has_failed_control(timings: Mapping[str, Timing], baseline: str | None) -> bool:
    base = timings.get(baseline or "")
    if base is None or base.twin is None:
        return False
    compared = Baseline(base)
    controls = (compared.decide(compared.prepare(own)).control for own in timings.values())
    return any(control is not None and control.state in ("faster", "slower") for control in controls)
