"""The judge of speed: which of two implementations is faster, where their samples can tell.

Both sides of a contest were called in turns in the same processes. A process gives one number, the median ratio of its
clean calls, cycle by cycle; a verdict is an order statistic of those numbers, so that a process which went astray
decides nothing. Where the machine had other work, or the baseline differs from itself, there is no verdict.

The baseline is built twice, and each cycle has one of the two: against others they are one, and against one another
they tell what noise is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from attnbench.records import COUNTED, Timing
from attnbench.stats import (
    CLEAN_CALLS,
    Estimate,
    Measure,
    estimate,
    measure_of,
    rank_of,
    ratios_by_cycle,
    samples_of,
    throttled_calls,
)

__all__ = ["EFFECT", "STATES", "VERDICTS", "Contest", "State", "contest"]

State = Literal["faster", "slower", "same", "unknown", "inconclusive"]
STATES: tuple[State, ...] = get_args(State)
# States that say how the two compare. Of the others, more processes may end ``unknown``, and only a quieter machine
# ``inconclusive``.
VERDICTS: frozenset[State] = frozenset({"faster", "slower", "same"})
# Relative difference that counts.
EFFECT = 0.01
# Probability that a verdict is wrong for a true ratio at the very edge of what counts. The second smallest of ten is
# beyond their median in 1.07 % of draws.
LEVEL = 0.011
# Processes that must count; of fewer that were planned, all.
ENOUGH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What came of a contest; the ratio stands beside its state and never alone."""

    state: State
    # Time over that of the baseline, over the processes that count; None where none does. Its interval is the one that
    # the state follows from, where the processes are enough for one.
    ratio: Estimate | None
    # Processes that count, of those that timed both sides.
    counted: int
    of: int
    # The baseline's twin against the baseline, where it was timed.
    null: "Contest | None" = None
    # Why there is no verdict.
    reason: str = ""
    # Which time was judged.
    measure: Measure = "wall"


def contest(own: Timing, base: Timing, *, effect: float = EFFECT) -> Contest:
    """An implementation against the baseline that took turns with it, by time on the device where both have that.

    ``effect`` is the relative difference that counts.

    Raises: ValueError where the samples are not of the same processes.
    """
    measure = measure_of(own, base, *([base.twin] if base.twin else []))
    null = None if base.twin is None else _judged(base.twin, base, effect, measure)
    found = _judged(own, _whole(base), effect, measure, null=null)
    if null is None or null.state not in ("faster", "slower") or found.state == "inconclusive":
        return found
    assert null.ratio is not None
    return replace(
        found, state="inconclusive", reason=f"the baseline took {null.ratio.value:.3f} times as long as itself"
    )


def _whole(base: Timing) -> Timing:
    """The baseline and its twin as one; in older runs, where both took part in every cycle, the baseline alone."""
    twin = base.twin
    if twin is None or not twin.cycles:
        return base
    if any(set(own) & set(other) for own, other in zip(base.cycles, twin.cycles, strict=True)):
        return base
    columns: dict[str, Any] = {name: _joined(base, twin, name) for name in ("samples_ns", *COUNTED)}
    return replace(base, **columns)


def _joined(base: Timing, twin: Timing, name: str) -> tuple[tuple[Any, ...], ...]:
    """A column of both, process by process; nothing of a process in which either lacks it."""
    found = []
    for process, both in enumerate(zip(base.samples_ns, twin.samples_ns, strict=True)):
        parts = [column[process] if (column := getattr(timing, name)) else () for timing in (base, twin)]
        complete = all(len(part) == len(calls) for part, calls in zip(parts, both, strict=True))
        found.append((*parts[0], *parts[1]) if complete else ())
    return tuple(found) if any(found) else ()


def _judged(own: Timing, base: Timing, effect: float, measure: Measure, *, null: Contest | None = None) -> Contest:
    """A contest by its own samples."""
    ratios, of = _ratios(own, base, measure)
    counted = len(ratios)
    state: State
    if counted < min(ENOUGH, of):
        state, reason = "inconclusive", _held_up(own, base, measure, of - counted, of)
    else:
        state, reason = _verdict(ratios, effect)
    return Contest(
        state=state,
        ratio=estimate(ratios, tail=LEVEL) if ratios else None,
        counted=counted,
        of=of,
        null=null,
        reason=reason,
        measure=measure,
    )


def _held_up(own: Timing, base: Timing, measure: Measure, lost: int, of: int) -> str:
    """Why some processes do not count."""
    calls = [len(process) for timing in (own, base) for process in timing.samples_ns if process]
    if min(calls) < CLEAN_CALLS:
        return f"calls so slow that a process made {min(calls)} of the {CLEAN_CALLS} that it takes"
    if left_out := max(throttled_calls(own), throttled_calls(base)):
        return f"the device's clock moved or was held down in {left_out} cycles: {lost} of {of} processes do not count"
    if measure == "device":
        return f"other work delayed launches in {lost} of {of} processes"
    return f"other work disturbed {lost} of {of} processes"


def _ratios(own: Timing, base: Timing, measure: Measure) -> tuple[list[float], int]:
    """Ratio of every process that counts, and how many processes timed both."""
    if len(own.samples_ns) != len(base.samples_ns):
        raise ValueError(
            f"samples of {len(own.samples_ns)} and of {len(base.samples_ns)} processes were not taken in turns"
        )
    timed = zip(samples_of(own, measure), samples_of(base, measure), strict=True)
    together = [bool(one and other) for one, other in timed]
    return ratios_by_cycle(own, base, measure), sum(together)


def _verdict(ratios: Sequence[float], effect: float) -> tuple[State, str]:
    """State by the order statistics, and why it is no verdict."""
    rank = rank_of(len(ratios), LEVEL)
    if not rank:
        return "unknown", f"{len(ratios)} processes are too few for a verdict"
    low, high = sorted(ratios)[rank - 1], sorted(ratios)[-rank]
    if low > 1 + effect:
        return "slower", ""
    if high < 1 - effect:
        return "faster", ""
    if 1 - effect <= low and high <= 1 + effect:
        return "same", ""
    return "unknown", f"the interval reaches across {effect:.0%}, the difference that counts"
