"""The crossover map: which implementation to use, for each place, form, length and pass.

The map needs neither torch nor data frames, so that it can be exported and read by other programs.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal, get_args

from attnbench.analysis.limits import Limits
from attnbench.analysis.speed_verdict import EFFECT, LEVEL, State
from attnbench.analysis.stats import rank_of

__all__ = [
    "ANSWERS",
    "DECISIVE",
    "FASTER",
    "Answer",
    "AnswerKind",
    "Contender",
    "Entry",
    "Flip",
    "Interval",
    "choose",
    "count_compared",
    "find_flips",
    "find_seen",
]

# What a cell of the map says:
# ``winner``: one implementation is faster than the reference, and than all others with the verdict ``faster``.
# ``tie``: several implementations are faster than the reference, and cannot be told apart from the fastest.
# ``reference``: every other implementation with a verdict is slower than the reference.
# ``no_difference``: no implementation has the verdict ``faster``, and some cannot be told apart from the reference.
# ``unknown``: the samples do not decide whether some implementation is faster than the reference.
# ``inconclusive``: the comparison of the fastest implementation, or every comparison, is inconclusive.
# ``alone``: only one implementation was timed.
# ``not_compared``: no call was interleaved with the reference.
AnswerKind = Literal["winner", "tie", "reference", "no_difference", "unknown", "inconclusive", "alone", "not_compared"]
ANSWERS: tuple[AnswerKind, ...] = get_args(AnswerKind)
# Answers that name what to use.
DECISIVE: frozenset[AnswerKind] = frozenset({"winner", "tie", "reference", "no_difference"})
# Those of them whose names are faster than the reference.
FASTER: frozenset[AnswerKind] = frozenset({"winner", "tie"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median over processes, and its confidence interval; with one process, ``low`` and ``high`` equal ``value``."""

    value: float
    low: float
    high: float
    processes: int

    def invert(self) -> "Interval":
        """Return the interval of the inverse: a ratio of times becomes a ratio of speeds."""
        return Interval(value=1 / self.value, low=1 / self.high, high=1 / self.low, processes=self.processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """An implementation that was timed on a case."""

    implementation: str
    time_ns: float
    # Time divided by the reference's time; None if the implementation was not interleaved with the reference, or if too
    # many calls were disturbed.
    ratio: Interval | None
    # The speed verdict; empty for the reference, and for an implementation that was not compared with it.
    state: State | Literal[""]
    # Why the state is no verdict; empty for a verdict.
    reason: str = ""
    # Id of the run that timed the implementation.
    run: str = ""
    # Where ``ratio`` is None: time divided by the reference's time in the undisturbed cycles, however few these are;
    # None if there are none. It decides nothing.
    seen: float | None = None

    @property
    def shown(self) -> float | None:
        """The ratio by which implementations are ordered: ``ratio``, or else ``seen``; None if neither is known."""
        return self.ratio.value if self.ratio else self.seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to use in one cell of the map."""

    kind: AnswerKind
    # winner, tie: the fastest first. reference, no_difference: the reference first. unknown: those that may be faster
    # than the reference, the fastest first; if nobody was faster, the reference. inconclusive: those whose comparisons
    # are inconclusive. alone, not_compared: those that were timed.
    names: tuple[str, ...]
    # Time of the reference divided by the time of the first name; None unless the kind is winner, tie, or unknown with
    # enough processes for an interval.
    gain: Interval | None = None
    # unknown, inconclusive: why the samples decide nothing.
    reason: str = ""
    # Implementations whose measurement does not exclude that they are as fast as the first name.
    undecided: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One cell of the crossover map."""

    machine: str
    device: str
    dtype: str
    threads: int
    # The problem without its length, as in the ids of cases.
    form: str
    queries: int
    keys: int
    mode: str
    # "forward" or "forward+backward".
    pass_: str
    reference: str
    answer: Answer
    # Implementations that were timed, but fail checks. They are no choice, whatever their time.
    excluded: tuple[str, ...] = ()
    # Contenders that are known to conform: enough cases were checked, and no run left out any of their checks.
    conform: frozenset[str] = frozenset()
    # The answer among the reference and the implementations that conform. None if all contenders conform, or if the
    # answer is not known to conform.
    conforming: Answer | None = None
    # Peak memory in bytes; None where not measured. ``peak_bytes``: of the first name of the answer.
    # ``reference_peak_bytes``: of the reference. ``conforming_peak_bytes``: of the first name of ``conforming``.
    peak_bytes: float | None = None
    reference_peak_bytes: float | None = None
    conforming_peak_bytes: float | None = None
    # Id of the case that was timed.
    case: str = ""
    # Every implementation that may be chosen, and the reference.
    contenders: tuple[Contender, ...] = ()
    # What each contender refuses, and the number of its checked cases, by name.
    contender_limits: dict[str, Limits] = field(default_factory=dict)
    contender_checked: dict[str, int] = field(default_factory=dict)
    # Every implementation that was timed.
    timed: frozenset[str] = frozenset()
    # Implementations whose timed calls all had the same input values.
    fixed: frozenset[str] = frozenset()

    @property
    def best(self) -> Answer:
        """What to use: the answer among those that conform, or among all if it is not known who conforms."""
        return self.conforming or self.answer

    @property
    def compared(self) -> tuple[Contender, ...]:
        """The contenders among which ``best`` was chosen."""
        if self.conforming is None:
            return self.contenders
        return tuple(one for one in self.contenders if one.implementation in {*self.conform, self.reference})

    @property
    def limits(self) -> tuple[Limits, ...]:
        """What each name of the answer refuses, in the order of ``answer.names``."""
        return tuple(self.contender_limits[name] for name in self.answer.names)

    @property
    def checked(self) -> tuple[int, ...]:
        """Number of checked cases of each name of the answer, in their order; empty if no contender was checked."""
        known = self.contender_checked
        return tuple(known[name] for name in self.answer.names) if any(known.values()) else ()

    @property
    def problem(self) -> tuple[str, int, int, str]:
        """Form, queries, keys and mode: entries with equal problems differ in their place only."""
        return self.form, self.queries, self.keys, self.mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A problem with different answers on several machines or devices; ``entries`` has the cell of each of these."""

    entries: tuple[Entry, ...]


def choose(contenders: Sequence[Contender], reference: str) -> Answer:
    """Return which of these implementations to use on one case, all timed at the same place."""
    names = tuple(one.implementation for one in sorted(contenders, key=lambda one: one.time_ns))
    others = [one for one in contenders if one.implementation != reference]
    if len(names) == 1:
        return Answer(kind="alone", names=names)
    if not any(one.state for one in others):
        return Answer(kind="not_compared", names=names)
    compared = [one for one in contenders if one.state or one.implementation == reference]
    fastest = _find_fastest(compared, reference)
    disturbed = tuple(one for one in compared if one.state == "inconclusive")
    if fastest in disturbed or len(disturbed) == len(others):
        reason = (fastest if fastest in disturbed else disturbed[0]).reason
        return Answer(kind="inconclusive", names=tuple(one.implementation for one in disturbed), reason=reason)
    clear = sorted(
        (pair for one in others if one not in disturbed and (pair := _pair(one))), key=lambda pair: pair[1].value
    )
    if any(one.state == "faster" for one, _ in clear):
        return _choose_fastest(clear, disturbed)
    unknown = [(one, ratio) for one, ratio in clear if one.state == "unknown"]
    ahead = [(one, ratio) for one, ratio in unknown if _may_be_faster(ratio)]
    if ahead:
        first, ratio = ahead[0]
        names = tuple(one.implementation for one, _ in ahead)
        gain = None if _has_few_processes(ratio) else ratio.invert()
        return Answer(kind="unknown", names=names, gain=gain, reason=first.reason)
    few = [one for one, ratio in unknown if _has_few_processes(ratio)]
    if few:
        return Answer(kind="unknown", names=(reference,), reason=few[0].reason)
    level = tuple(one.implementation for one, _ in clear if one.state != "slower")
    undecided = tuple(one.implementation for one in disturbed)
    return Answer(kind="no_difference" if level else "reference", names=(reference, *level), undecided=undecided)


def find_seen(contenders: Iterable[Contender], reference: str) -> Contender | None:
    """Return the implementation with the smallest ratio to the reference, which is no verdict; None without a ratio."""
    others = [one for one in contenders if one.implementation != reference and one.state and one.shown is not None]
    return min(others, key=lambda one: one.shown or 0.0, default=None)


def _find_fastest(compared: Sequence[Contender], reference: str) -> Contender:
    """Return the fastest implementation by the ratios that a report shows.

    The time of an implementation without an undisturbed call is compared with that of the reference: it may be the
    fastest, so that nothing is decided.
    """
    base_ns = next((one.time_ns for one in compared if one.implementation == reference), math.nan)

    def place(one: Contender) -> float:
        if one.implementation == reference:
            return 1.0
        return one.time_ns / base_ns if one.shown is None else one.shown

    return min(compared, key=place)


def find_flips(entries: Iterable[Entry]) -> Iterator[Flip]:
    """Yield each problem whose answers differ between machines or devices, for one dtype and number of threads.

    Two answers differ if they name no common implementation, although each names one that was timed at both places.
    Implementations in ``undecided`` count as named. Answers that decide nothing are left out.
    """
    for alike in _group_decided(entries):
        if any(_contradict(one, other) for one, other in combinations(alike, 2)):
            yield Flip(entries=tuple(alike))


def count_compared(entries: Iterable[Entry]) -> int:
    """Return how many problems have answers that decide at two machines or devices or more."""
    return sum(len(alike) > 1 for alike in _group_decided(entries))


def _group_decided(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Return the entries whose answers decide, by problem, dtype and number of threads."""
    by_problem: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        if entry.answer.kind in DECISIVE:
            by_problem.setdefault((*entry.problem, entry.dtype, entry.threads), []).append(entry)
    return list(by_problem.values())


def _contradict(one: Entry, other: Entry) -> bool:
    named, also = ({*entry.answer.names, *entry.answer.undecided} for entry in (one, other))
    return bool(named & other.timed and also & one.timed) and not named & also


def _pair(contender: Contender) -> tuple[Contender, Interval] | None:
    return None if contender.ratio is None else (contender, contender.ratio)


def _choose_fastest(clear: Sequence[tuple[Contender, Interval]], disturbed: Sequence[Contender]) -> Answer:
    """Return the winner or the tie; at least one of ``clear`` is faster than the reference."""
    faster = [(one, ratio) for one, ratio in clear if one.state == "faster"]
    best = faster[0][1]
    names = tuple(one.implementation for one, ratio in faster if ratio.low <= best.high)
    undecided = [one.implementation for one, ratio in clear if one.state == "unknown" and ratio.low <= best.high]
    undecided += [one.implementation for one in disturbed if one.ratio is None or one.ratio.low <= best.high]
    return Answer(
        kind="winner" if len(names) == 1 else "tie", names=names, gain=best.invert(), undecided=tuple(undecided)
    )


def _may_be_faster(ratio: Interval) -> bool:
    """Whether an implementation without a verdict may be faster than the reference by more than the threshold.

    The interval of too few processes says little; with too few, the ratio itself decides, and not its interval.
    """
    return (ratio.value if _has_few_processes(ratio) else ratio.low) < 1 - EFFECT


def _has_few_processes(ratio: Interval) -> bool:
    return not rank_of(ratio.processes, LEVEL)
