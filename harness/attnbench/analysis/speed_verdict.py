"""Speed verdicts: which of two implementations is faster, if their samples can decide it.

Both implementations are timed by interleaved calls in the same processes. Each cycle in which both
calls are clean gives one ratio of their times. A process contributes one number, the median of
these ratios. A verdict follows from order statistics of these numbers, so a few outlying processes
cannot change the verdict. There is no verdict if other work disturbed the machine, or if the A/A
control fails.

The A/A control compares the baseline with a second copy of itself. Each cycle calls either the
baseline or its copy. When another implementation is compared with the baseline, the samples of the
baseline and of its copy are used alike.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

from attnbench.analysis.stats import (
    CLEAN_CALLS,
    CleanCalls,
    Column,
    Divisor,
    Estimate,
    Measure,
    choose_measure,
    count_throttled_calls,
    estimate,
    rank_of,
)
from attnbench.records.types import Timing

__all__ = [
    "CONTROL",
    "EFFECT",
    "ENOUGH",
    "LEVEL",
    "STATES",
    "VERDICTS",
    "Baseline",
    "Cause",
    "Mark",
    "NoVerdict",
    "SpeedVerdict",
    "State",
    "decide_speed",
    "explain_disturbed_time",
    "find_slowdown",
    "share_level",
    "splits_cycles",
]

State = Literal["faster", "slower", "same", "unknown", "inconclusive"]
STATES: tuple[State, ...] = get_args(State)
# States that are verdicts. With more processes, ``unknown`` may become a verdict. With less other work on the machine,
# ``inconclusive`` may become a verdict.
VERDICTS: frozenset[State] = frozenset({"faster", "slower", "same"})
# What a table shows of a comparison: a verdict; ``not_slower``, where the interval's upper end is below 1 + ``EFFECT``;
# ``not_faster``, where its lower end is above 1 - ``EFFECT``; or that neither is known.
Mark = Literal["faster", "slower", "same", "not_slower", "not_faster", "undecided"]
# Why there is no verdict:
# ``few_processes``: fewer processes than an interval needs.
# ``crosses_threshold``: the interval has values on both sides of the threshold.
# ``few_calls``: a process made fewer calls than a median needs, because the calls are slow.
# ``throttled``: the device's clock changed or was throttled.
# ``delayed_launches``: other work delayed kernel launches. ``disturbed``: other work disturbed the calls.
# ``own_losses``: only the implementation's own calls were disturbed, so it may have chosen the processes that count.
# ``control``: the A/A control shows a difference between two copies of the baseline.
# ``fixed_values``: all calls had the same input values, so results may have been kept.
Cause = Literal[
    "few_processes", "crosses_threshold", "few_calls", "throttled", "delayed_launches", "disturbed", "own_losses",
    "control", "fixed_values",
]  # fmt: skip
# Name of the baseline's second copy in interleaved timing. The A/A control compares this copy with
# the baseline.
CONTROL = "(twin)"
# Relative difference above which the verdict is slower or faster.
EFFECT = 0.01
# Largest probability of a wrong verdict if the true ratio lies exactly on the threshold. The value suits ten processes:
# the second smallest of ten values lies above the true median with a probability of 1.07 %.
LEVEL = 0.011
# A verdict needs enough clean calls (``stats.CLEAN_CALLS``) in at least this many processes. If fewer
# processes than this timed both implementations, it needs enough clean calls in every one of them.
ENOUGH = 8
# Largest fraction of the processes that an implementation may lose by its own disturbed calls: two of ten, as many as a
# verdict on the ten processes with which a profile begins can lose. An implementation that makes its own calls wait can
# choose no more, also where processes are added.
OWN_LOSSES = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class NoVerdict:
    """Why samples give no verdict, with the numbers of the cause; ``words.speed`` says it in words."""

    cause: Cause
    # few_processes: processes that count. few_calls: the fewest calls of a process. throttled: cycles.
    count: int = 0
    # Of how many processes (``of``) none or only disturbed calls are left (``lost``).
    lost: int = 0
    of: int = 0
    # crosses_threshold: the threshold. control: the difference between the two copies. Both relative to 1.
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedVerdict:
    """Result of a comparison of the speed of two implementations.

    Reports show the ratio only together with the state.
    """

    state: State
    # Time divided by the baseline's time, estimated over the processes with enough clean calls;
    # None if no process has enough clean calls. If there are enough such processes for a verdict,
    # the state follows from the interval of this estimate.
    ratio: Estimate | None
    # Number of processes with enough clean calls.
    counted: int
    # Number of processes that timed both implementations.
    of: int
    # The A/A control: the baseline's copy compared with the baseline, if the copy was timed.
    control: "SpeedVerdict | None" = None
    # Why there is no verdict; None for a verdict.
    reason: NoVerdict | None = None
    # Which time was compared: device time or wall time.
    measure: Measure = "wall"
    # Whether the state is ``inconclusive`` because too few processes have enough clean calls, and at most the fraction
    # ``OWN_LOSSES`` of the processes is lost although the baseline's calls were clean. Further processes may then give
    # a verdict.
    disturbed: bool = False
    # Relative difference above which the verdict is slower or faster, and the level of the verdict.
    effect: float = EFFECT
    level: float = LEVEL

    @property
    def mark(self) -> Mark:
        """What a table shows: the verdict, or which of two verdicts the interval excludes."""
        if self.state in ("faster", "slower", "same"):
            return self.state
        if self.state == "inconclusive" or self.ratio is None or not rank_of(self.ratio.processes, self.level):
            return "undecided"
        if self.ratio.high < 1 + self.effect:
            return "not_slower"
        return "not_faster" if self.ratio.low > 1 - self.effect else "undecided"


def share_level(alarms: float, comparisons: int, looks: int) -> float:
    """Return the level of each of several verdicts, so that all together are wrong with a probability of ``alarms``.

    Each of ``comparisons`` is judged up to ``looks`` times, after every addition of processes. By Bonferroni's
    inequality the probabilities add up, whatever the comparisons have to do with one another.
    """
    return alarms / (comparisons * looks)


def decide_speed(own: Timing, base: Timing, *, effect: float = EFFECT, level: float = LEVEL) -> SpeedVerdict:
    """Compare an implementation with the baseline timed in the same processes, by device time if all timings have it.

    ``effect`` is the relative difference above which the verdict is slower or faster, and ``level`` the largest
    probability of a wrong verdict if the true ratio lies exactly there. If ``own`` is the baseline's copy
    (``base.twin``), the result is the A/A control itself.

    Raises: ValueError if the timings have different numbers of processes.
    """
    baseline = Baseline(base)
    return baseline.decide(baseline.prepare(own), effect=effect, level=level)


def find_slowdown(found: SpeedVerdict, slower: float) -> bool | None:
    """Return whether a time is larger by the fraction ``slower``; None if its interval leaves that open.

    It is if the estimate is so large, and the whole interval is above 1 + ``found.effect``, a smaller threshold. It is
    not if the whole interval is below 1 + ``slower``.
    """
    if found.state == "inconclusive" or found.ratio is None or not rank_of(found.ratio.processes, found.level):
        return None
    if found.state == "slower" and found.ratio.value >= 1 + slower:
        return True
    return False if found.ratio.high < 1 + slower else None


def explain_disturbed_time(timing: Timing) -> NoVerdict | None:
    """Return why the wall time of a call is not usable: other work disturbed it in as many processes as end a verdict.

    None if it is usable, or if the calls are too few to know.
    """
    calls, of = CleanCalls(timing, "wall"), sum(map(bool, timing.samples_ns))
    counted = sum(bool(calls.list_times(process)) for process in range(calls.processes))
    if counted >= min(ENOUGH, of) or _count_fewest_calls([timing]) < CLEAN_CALLS:
        return None
    return _explain_lost_processes([timing], "wall", of - counted, of)


class Baseline:
    """A baseline with its A/A control, with which several implementations are compared.

    The baseline's calls are prepared once for all comparisons.
    """

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self._splits = timing.twin is not None and splits_cycles(timing.cycles, timing.twin.cycles)
        self._divisors: dict[Measure, tuple[Divisor, tuple[Divisor, Divisor] | None]] = {}

    def prepare(self, own: Timing) -> CleanCalls:
        """Return the clean calls of an implementation, by the time in which it can be compared with this baseline."""
        copy = self._find_copy(own)
        return CleanCalls(own, choose_measure(own, self.timing, *([copy] if copy else [])))

    def _find_copy(self, own: Timing) -> Timing | None:
        """Return the copy with which the A/A control is made; None if there is none, or if it is ``own`` itself."""
        return None if own is self.timing.twin else self.timing.twin

    def decide(self, calls: CleanCalls, *, effect: float = EFFECT, level: float = LEVEL) -> SpeedVerdict:
        """Compare the calls of ``prepare`` with this baseline; see ``decide_speed``."""
        own, base, copy, measure = calls.timing, self.timing, self._find_copy(calls.timing), calls.measure
        judge = partial(_decide_by_ratios, effect=effect, level=level, measure=measure)
        by_base, split = self._prepare(measure)
        if copy is None or split is None:
            processes = _find_common_processes(own, base)
            ratios = {p: by_base.divide(p, calls) for p in processes}
            found = judge([*ratios.values()], [own, base])
            found = _judge_losses(found, ratios, by_base, [own, base])
            control = self._decide_control(by_base, copy, measure, judge) if copy else None
            return _apply_values(_apply_control(found, control), own, base)
        by_copy, by_both = split
        processes = _find_common_processes(own, base, copy)
        # No cycle calls both the baseline and its copy, so some cycles give the ratio of ``own`` to the
        # baseline, and others the ratio of ``own`` to the copy. The A/A control divides the first ratio
        # by the second. Each ratio compares calls of the same cycle, so a drift of the machine between
        # the cycles cancels.
        copy_to_base, by_cycle = [], {}
        for p in processes:
            base_ratios, copy_ratios = by_base.list_ratios(p, calls), by_copy.list_ratios(p, calls)
            to_base, to_copy = by_base.reduce(p, calls, base_ratios), by_copy.reduce(p, calls, copy_ratios)
            copy_to_base.append(to_base / to_copy if to_base and to_copy else None)
            by_cycle[p] = by_both.reduce(p, calls, base_ratios + copy_ratios)
        control = judge(copy_to_base, [own, base, copy])
        found = judge([*by_cycle.values()], [own, base, copy])
        found = _judge_losses(found, by_cycle, by_both, [own, base, copy])
        return _apply_values(_apply_control(found, control), own, base)

    def find_time(self, calls: CleanCalls) -> float | None:
        """Return the baseline's time, in nanoseconds, in the calls by which ``decide`` divides the times of ``calls``.

        It is a median over processes, like the ratio. None means that no process has enough clean calls.
        """
        by_base, split = self._prepare(calls.measure)
        divisor = split[1] if split else by_base
        times = [divisor.find_time(p, calls) for p in _find_common_processes(calls.timing, self.timing)]
        counted = [time for time in times if time is not None]
        return float(statistics.median(counted)) if counted else None

    def _prepare(self, measure: Measure) -> tuple[Divisor, tuple[Divisor, Divisor] | None]:
        """Return the divisor of the baseline.

        If no cycle called both the baseline and its copy, also return the divisors of the copy and of the two together.
        """
        if measure not in self._divisors:
            base, copy, split = CleanCalls(self.timing, measure), self.timing.twin, None
            if copy is not None and self._splits:
                twin = CleanCalls(copy, measure)
                split = Divisor([twin]), Divisor([base, twin])
            self._divisors[measure] = Divisor([base]), split
        return self._divisors[measure]

    def _decide_control(
        self, by_base: Divisor, copy: Timing, measure: Measure, judge: Callable[..., SpeedVerdict]
    ) -> SpeedVerdict:
        """Compare the baseline's copy with the baseline if the calls of both are in the same cycles."""
        calls = CleanCalls(copy, measure)
        processes = _find_common_processes(copy, self.timing)
        return judge([by_base.divide(p, calls) for p in processes], [copy, self.timing])


def splits_cycles(base: Column, copy: Column) -> bool:
    """Whether each cycle called either the baseline or its copy; in older runs, each cycle called both."""
    cycles = list(zip(base, copy, strict=False))
    return any(own and other for own, other in cycles) and not any(set(own) & set(other) for own, other in cycles)


def _find_common_processes(*timings: Timing) -> list[int]:
    """Return the indices of the processes in which all implementations were called."""
    if len(counts := {len(timing.samples_ns): timing for timing in timings}) > 1:
        numbers = " and ".join(map(str, sorted(counts, reverse=True)))
        raise ValueError(f"interleaved timings must have the same number of processes, got {numbers}")
    return [number for number, calls in enumerate(zip(*(t.samples_ns for t in timings), strict=True)) if all(calls)]


def _decide_by_ratios(
    ratios: Sequence[float | None], sides: Sequence[Timing], *, effect: float, level: float, measure: Measure
) -> SpeedVerdict:
    """Return the speed verdict that follows from one ratio of times per process.

    The ratio of a process without enough clean calls is None. ``sides`` are the timings that are compared.
    """
    counted, of = [ratio for ratio in ratios if ratio is not None], len(ratios)
    state: State
    reason: NoVerdict | None
    if len(counted) < min(ENOUGH, of):
        state, reason = "inconclusive", _explain_lost_processes(sides, measure, of - len(counted), of)
    else:
        state, reason = _decide_state(counted, effect, level)
    return SpeedVerdict(
        state=state,
        ratio=estimate(counted, tail=level) if counted else None,
        counted=len(counted),
        of=of,
        reason=reason,
        measure=measure,
        effect=effect,
        level=level,
    )


def _judge_losses(
    found: SpeedVerdict, ratios: Mapping[int, float | None], bases: Divisor, sides: Sequence[Timing]
) -> SpeedVerdict:
    """Judge the processes that gave no ratio; ``ratios`` has the ratio of each process, whose divisor is ``bases``.

    An implementation that lost too many of them by itself may have chosen those that count, and its verdict becomes
    inconclusive. Nothing chooses processes in order to look slower. In an inconclusive result, ``disturbed`` is set.
    """
    losses = sum(bases.is_clean(process) for process, ratio in ratios.items() if ratio is None)
    are_few = losses <= OWN_LOSSES * found.of
    if found.state == "inconclusive":
        return replace(found, disturbed=are_few and _count_fewest_calls(sides) >= CLEAN_CALLS)
    if are_few or found.state == "slower":
        return found
    reason = NoVerdict(cause="own_losses", lost=losses, of=found.of)
    return replace(found, state="inconclusive", reason=reason)


def _apply_control(found: SpeedVerdict, control: SpeedVerdict | None) -> SpeedVerdict:
    """Add the A/A control to a result; if the control shows a difference, the state becomes inconclusive."""
    found = replace(found, control=control)
    if found.state == "inconclusive" or control is None or control.ratio is None:
        return found
    if control.state not in ("faster", "slower"):
        return found
    reason = NoVerdict(cause="control", share=abs(control.ratio.value - 1))
    return replace(found, state="inconclusive", reason=reason)


def _apply_values(found: SpeedVerdict, own: Timing, base: Timing) -> SpeedVerdict:
    """Make a result inconclusive if ``own`` may have kept results that the baseline had to compute.

    Kept results make calls shorter, so a call that is slower nevertheless is slower.
    """
    if (own.values, base.values) != ("fixed", "fresh") or found.state in ("slower", "inconclusive"):
        return found
    return replace(found, state="inconclusive", reason=NoVerdict(cause="fixed_values"))


def _explain_lost_processes(sides: Sequence[Timing], measure: Measure, lost: int, of: int) -> NoVerdict:
    """Return why ``lost`` of ``of`` processes do not have enough clean calls."""
    fewest = _count_fewest_calls(sides)
    if fewest < CLEAN_CALLS:
        return NoVerdict(cause="few_calls", count=fewest)
    if throttled := max(map(count_throttled_calls, sides)):
        return NoVerdict(cause="throttled", count=throttled, lost=lost, of=of)
    return NoVerdict(cause="delayed_launches" if measure == "device" else "disturbed", lost=lost, of=of)


def _count_fewest_calls(sides: Sequence[Timing]) -> int:
    """Return the smallest number of calls that a process made of one of these timings; 0 without processes."""
    return min((len(process) for timing in sides for process in timing.samples_ns if process), default=0)


def _decide_state(ratios: Sequence[float], effect: float, level: float) -> tuple[State, NoVerdict | None]:
    """Return the state that follows from order statistics of the ratios, and why it is no verdict, if it is none."""
    rank = rank_of(len(ratios), level)
    if not rank:
        return "unknown", NoVerdict(cause="few_processes", count=len(ratios))
    low, high = sorted(ratios)[rank - 1], sorted(ratios)[-rank]
    if low > 1 + effect:
        return "slower", None
    if high < 1 - effect:
        return "faster", None
    if 1 - effect <= low and high <= 1 + effect:
        return "same", None
    return "unknown", NoVerdict(cause="crosses_threshold", share=effect)
