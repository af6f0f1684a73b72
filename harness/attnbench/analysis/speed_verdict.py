"""The judge of speed: which of two implementations is faster, where their samples can tell.

Both sides of a contest were called in turns in the same processes. A process gives one number, the median ratio of its
clean calls, cycle by cycle; a verdict is an order statistic of those numbers, so that a process which went astray
decides nothing. Where the machine had other work, or the baseline differs from itself, there is no verdict.

The baseline is built twice, and each cycle has one of the two: against others they are one, and against one another
they tell what noise is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from attnbench.analysis.stats import (
    CLEAN_CALLS,
    Estimate,
    Measure,
    Samples,
    estimate,
    measure_of,
    rank_of,
    ratio_in,
    throttled_calls,
)
from attnbench.records.types import Timing

__all__ = ["EFFECT", "STATES", "VERDICTS", "SpeedVerdict", "State", "judge_speed", "shares_turns"]

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
class SpeedVerdict:
    """What came of a contest; the ratio stands beside its state and never alone."""

    state: State
    # Time over that of the baseline, over the processes that count; None where none does. Its interval is the one that
    # the state follows from, where the processes are enough for one.
    ratio: Estimate | None
    # Processes that count, of those that timed both sides.
    counted: int
    of: int
    # The baseline's twin against the baseline, where it was timed.
    null: "SpeedVerdict | None" = None
    # Why there is no verdict.
    reason: str = ""
    # Which time was judged.
    measure: Measure = "wall"


def judge_speed(own: Timing, base: Timing, *, effect: float = EFFECT) -> SpeedVerdict:
    """An implementation against the baseline that took turns with it, by time on the device where all have that.

    ``effect`` is the relative difference that counts. Of the baseline's twin itself it says how the two compare.

    Raises: ValueError where the samples are not of the same processes.
    """
    twin = None if own is base.twin else base.twin
    measure = measure_of(own, base, *([twin] if twin else []))
    if twin is None or not shares_turns(base.cycles, twin.cycles):
        null = _against(twin, [base], effect, measure) if twin else None
        return _beside(_against(own, [base], effect, measure), null)
    processes = _together(own, base, twin)
    # Each beside the calls of its own cycles: a machine that drifts from one's to the other's is in neither.
    beside = [(ratio_in(p, own, [base], measure), ratio_in(p, own, [twin], measure)) for p in processes]
    itself = [one / other if one and other else None for one, other in beside]
    return _beside(_against(own, [base, twin], effect, measure), _judged(itself, [own, base, twin], effect, measure))


def shares_turns(base: Samples, twin: Samples) -> bool:
    """Whether each cycle had one of the two, by the cycles of each; in older runs both took part in every one."""
    cycles = list(zip(base, twin, strict=False))
    return any(own and other for own, other in cycles) and not any(set(own) & set(other) for own, other in cycles)


def _together(*timings: Timing) -> list[int]:
    """Processes in which all took part."""
    if len(counts := {len(timing.samples_ns): timing for timing in timings}) > 1:
        told = " and of ".join(map(str, sorted(counts, reverse=True)))
        raise ValueError(f"samples of {told} processes were not taken in turns")
    return [number for number, calls in enumerate(zip(*(t.samples_ns for t in timings), strict=True)) if all(calls)]


def _against(own: Timing, bases: Sequence[Timing], effect: float, measure: Measure) -> SpeedVerdict:
    """A contest with one, or with those that are one since they shared their turns."""
    ratios = [ratio_in(process, own, bases, measure) for process in _together(own, *bases)]
    return _judged(ratios, [own, *bases], effect, measure)


def _judged(ratios: Sequence[float | None], sides: Sequence[Timing], effect: float, measure: Measure) -> SpeedVerdict:
    """A contest by the ratios of its processes, None where one does not count."""
    counted, of = [ratio for ratio in ratios if ratio is not None], len(ratios)
    state: State
    if len(counted) < min(ENOUGH, of):
        state, reason = "inconclusive", _held_up(sides, measure, of - len(counted), of)
    else:
        state, reason = _verdict(counted, effect)
    return SpeedVerdict(
        state=state,
        ratio=estimate(counted, tail=LEVEL) if counted else None,
        counted=len(counted),
        of=of,
        reason=reason,
        measure=measure,
    )


def _beside(found: SpeedVerdict, null: SpeedVerdict | None) -> SpeedVerdict:
    """A contest beside that of the baseline with itself: where this shows a difference, so may everything else."""
    found = replace(found, null=null)
    if null is None or null.ratio is None or null.state not in ("faster", "slower") or found.state == "inconclusive":
        return found
    return replace(
        found, state="inconclusive", reason=f"the baseline took {null.ratio.value:.3f} times as long as itself"
    )


def _held_up(sides: Sequence[Timing], measure: Measure, lost: int, of: int) -> str:
    """Why some processes do not count."""
    calls = [len(process) for timing in sides for process in timing.samples_ns if process]
    if min(calls) < CLEAN_CALLS:
        return f"calls so slow that a process made {min(calls)} of the {CLEAN_CALLS} that it takes"
    if left_out := max(map(throttled_calls, sides)):
        return f"the device's clock moved or was held down in {left_out} cycles: {lost} of {of} processes do not count"
    if measure == "device":
        return f"other work delayed launches in {lost} of {of} processes"
    return f"other work disturbed {lost} of {of} processes"


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
