"""Comparisons that are drawn from a pool: what our rule and those of other tools say of each, and how often wrongly.

A comparison takes processes that were measured one after another, so that whatever the machine did for minutes is in it
as in a real one: a stretch of twice as many as it needs, and of those at random as many as it needs, in their order.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from attnbench.analysis.speed_verdict import EFFECT, decide_speed
from research.detection.plants import BASE, SHARES
from research.detection.pools import Pool, Process, estimate_size, collect_times_ns, make_timing
from research.detection.rules import Cost, Rule, make_rules, average_calls
from research.lines import StudyError

__all__ = ["OUR_RULE", "DrawSettings", "Evaluation", "Tally", "evaluate_rules", "upper_bound"]

# What our own rules' names begin with.
OUR_RULE = "attnbench"
# Level of every bound.
LEVEL = 0.95
# Cases that share the start of a process, as many as ``compare`` measures unless told otherwise.
CASES = 4
# Fewest cycles of a comparison of ours.
FEWEST_CALLS = 9
# Processes that a run adds at a time while a contest is undecided.
STEP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSettings:
    """How comparisons are drawn."""

    # Wall time of a comparison in seconds, by number of threads; and processes of ours, by the same.
    seconds: Mapping[int, float]
    processes: Mapping[int, int]
    # Processes up to which ours may add more.
    most: int
    draws: int
    # Relative difference that counts.
    effect: float = EFFECT
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Tally:
    """What one rule said of one plant under one condition."""

    rule: str
    # Extra work in percent as it was meant, and the plant's true size as a share of a call, where it was measured.
    share: int
    true: float | None
    # Smallest difference that counts: the plant counts as none, or as a slowdown, if it is on that side of it.
    delta: float
    # Whether a verdict says on which side of that difference it is.
    sized: bool
    # Processes and calls of one side.
    layout: str
    wall_s: float
    # Comparisons that have no process in common.
    disjoint: int
    states: dict[str, int] = field(default_factory=dict)

    @property
    def comparisons(self) -> int:
        """How many there were."""
        return sum(self.states.values())

    @property
    def wrong(self) -> int:
        """Verdicts that the true size says are wrong: a difference where there is none, its wrong side, or its size.

        Ours says how large a difference is not, by ``same``, or is at least; of another tool ``same`` says nothing.
        """
        if not self.share:
            return self.count("slower", "faster")
        if not self.sized or self.true is None:
            return self.count("faster")
        return self.count("faster", "same" if self.true > self.delta else "slower")

    def add(self, state: str) -> None:
        """Count a comparison that ended so."""
        self.states[state] = self.count(state) + 1

    def count(self, *states: str) -> int:
        """Comparisons that ended in one of these states."""
        return sum(self.states.get(state, 0) for state in states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Everything that was said under one condition."""

    condition: str
    processes: int
    # Difference that counts.
    delta: float
    # Median number of cores that others kept busy before a process began, and that the competitor had meanwhile.
    others: float | None
    competitor: float | None
    tallies: tuple[Tally, ...]


def upper_bound(count: int, of: int, level: float = LEVEL) -> float:
    """Largest rate at which so few of so many still come with probability 1 − level.

    Source: Clopper and Pearson, The Use of Confidence or Fiducial Limits, Biometrika 26, 1934.
    """
    if count >= of:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):  # bisection to the last digit of a double
        middle = (low + high) / 2
        low, high = (low, middle) if _binomial_cdf(count, of, middle) < 1 - level else (middle, high)
    return high


def _binomial_cdf(count: int, of: int, rate: float) -> float:
    """P(Binomial(of, rate) ≤ count)."""
    if rate in (0.0, 1.0):
        return float(rate == 0.0 or count >= of)
    log, rest, combinations = math.log(rate), math.log1p(-rate), math.lgamma(of + 1)
    return math.fsum(
        math.exp(combinations - math.lgamma(i + 1) - math.lgamma(of - i + 1) + i * log + (of - i) * rest)
        for i in range(count + 1)
    )


def evaluate_rules(condition: str, pool: Pool, truth: Pool | None, asked: DrawSettings, *, starts_s: tuple[float, float]) -> Evaluation:
    """What all rules say of every plant of a pool.

    ``starts_s`` is what a process costs to start: one of another tool, alone, and one of ours, beside others.
    """
    threads, delta = pool.threads, asked.effect
    cost, ours = (Cost(seconds=asked.seconds[threads], start_s=start_s, call_s=pool.call_s) for start_s in starts_s)
    # Of ours everything that a case costs in a process besides its calls: building, warming up, looking again, too.
    ours = replace(ours, start_s=ours.start_s / CASES + (truth or pool).overhead_s)
    # Without extra work the copy is the reference: what it was measured to differ by is noise.
    true = {0: 0.0}
    if truth:
        true |= {share: found.value - 1 for share in SHARES if share and (found := estimate_size(truth, share))}
    tallies = []
    for share in SHARES:
        made = partial(Tally, share=share, true=true.get(share), delta=delta)
        tallies += [*_tally_our_rule(pool, share, ours, asked, made)]
        tallies += [_tally_rule(pool, share, rule, cost, asked, made) for rule in make_rules(delta)]
    return Evaluation(
        condition=condition,
        processes=len(pool.processes),
        delta=delta,
        others=_find_median([process["others"] for process in pool.processes]),
        competitor=_find_median([process["competitor"] for process in pool.processes]),
        tallies=tuple(tallies),
    )


def _tally_our_rule(pool: Pool, share: int, cost: Cost, asked: DrawSettings, made: Callable[..., Tally]) -> Iterator[Tally]:
    """Our rule in as many processes as were asked for, and the same with more where it is undecided."""
    count = asked.processes[pool.threads]
    calls = _count_cycles(pool, cost, count)
    one_s = cost.start_s + pool.calls_per_cycle * calls * cost.call_s
    for name, most in ((OUR_RULE, count), (f"{OUR_RULE}, up to {asked.most} processes", asked.most)):
        if most > count or name == OUR_RULE:
            used: list[int] = []
            layout = f"{count} × {calls}"
            tally = made(rule=name, layout=layout, sized=True, wall_s=0.0, disjoint=len(pool.processes) // most)
            for processes in _draw_comparisons(pool, max(most, count), asked):
                state, taken = _decide_state(processes, share, pool.threads, calls, count, asked.effect)
                tally.add(state)
                used.append(taken)
            tally.wall_s = one_s * sum(used) / len(used)
            yield tally


def _count_cycles(pool: Pool, cost: Cost, processes: int) -> int:
    """Cycles of one process that the time of the comparison leaves, of those that the pool has."""
    left_s = cost.seconds / processes - cost.start_s
    return min(pool.calls, max(FEWEST_CALLS, int(left_s / pool.calls_per_cycle / cost.call_s)))


def _decide_state(
    processes: Sequence[Process], share: int, threads: int, calls: int, first: int, effect: float
) -> tuple[str, int]:
    """State by our rule, with more processes while it is unknown; and how many there were in the end."""
    taken = min(first, len(processes))
    while True:
        some = processes[:taken]
        own = make_timing(some, str(share), threads=threads, calls=calls)
        state = decide_speed(own, make_timing(some, BASE, threads=threads, calls=calls), effect=effect).state
        if state != "unknown" or taken == len(processes):
            return state, taken
        taken = min(taken + STEP, len(processes))


def _tally_rule(pool: Pool, share: int, rule: Rule, cost: Cost, asked: DrawSettings, made: Callable[..., Tally]) -> Tally:
    """Another tool's rule: either side in processes of its own."""
    layout = rule.layout(cost).limit_calls(pool.calls)
    needs = 2 * layout.processes
    tally = made(
        rule=rule.name,
        layout=f"{layout.processes} × {layout.values} × {layout.loops}",
        sized=False,
        wall_s=layout.wall_s,
        disjoint=len(pool.processes) // needs,
    )
    for processes in _draw_comparisons(pool, needs, asked):
        half = len(processes) // 2
        bases, news = (processes[::2], processes[1::2]) if rule.alternating else (processes[:half], processes[half:])
        # A process that was disturbed from the start may have made fewer calls.
        least = min(len(collect_times_ns(p, side)) for p in processes for side in (BASE, str(share)))
        fitting = layout.limit_calls(least)
        one, other = (
            [average_calls(collect_times_ns(process, side), fitting) for process in some]
            for some, side in ((bases, BASE), (news, str(share)))
        )
        tally.add(rule.verdict(one, other))
    return tally


def _draw_comparisons(pool: Pool, needed: int, asked: DrawSettings) -> Iterator[list[Process]]:
    """Processes of each comparison, in their order; the same draws for everybody who needs as many."""
    order = random.Random(asked.seed)  # noqa: S311  # draws, no secret
    every = list(pool.processes)
    if len(every) < needed:
        raise StudyError(
            f"a comparison needs {needed} processes and the pool has {len(every)}: measure more with pool --resume, or "
            "ask for fewer with --processes and --most, or for less with --seconds"
        )
    stretch = min(2 * needed, len(every))
    for _ in range(asked.draws):
        begin = order.randrange(len(every) - stretch + 1)
        yield [every[begin + i] for i in sorted(order.sample(range(stretch), needed))]


def _find_median(numbers: Sequence[float | None]) -> float | None:
    known = sorted(number for number in numbers if number is not None)
    return known[len(known) // 2] if known else None
