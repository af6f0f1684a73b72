"""Comparisons drawn from a pool of measured processes, and how often decision rules give a wrong verdict.

"Our rule" is the rule of the harness; all other rules are those of other tools. The n processes of a comparison are
drawn at random from 2n consecutive processes of the pool, and keep their order. Disturbances of the machine that last
for minutes therefore affect a drawn comparison as they affect a real one.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from attnbench.analysis.speed_verdict import EFFECT, decide_speed
from research.detection.plants import BASE, SHARES
from research.detection.pools import Pool, Process, collect_times_ns, estimate_size, make_timing
from research.detection.rules import Cost, Layout, Rule, Verdict, average_calls, make_rules
from research.lines import StudyError

__all__ = [
    "OUR_RULE", "STEP", "DrawSettings", "Evaluation", "Tally", "decide_by_rule", "draw_comparisons", "evaluate_rules",
    "upper_bound",
]  # fmt: skip

# Name of the harness's rule in the tallies. The name of its variant with added processes begins with this name.
OUR_RULE = "attnbench"
# Confidence level of the upper bound of a rate.
LEVEL = 0.95
# Number of cases that share the time to start one process: as many as ``attnbench compare`` measures by default.
CASES = 4
# Smallest number of cycles of calls per process in a comparison by the harness's rule.
FEWEST_CALLS = 9
# Number of processes that a run adds at once while the speed verdict is ``unknown``.
STEP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSettings:
    """Settings by which comparisons are drawn."""

    # For each number of threads, the wall time of a comparison in seconds.
    seconds: Mapping[int, float]
    # For each number of threads, how many processes a comparison by the harness's rule has at first.
    processes: Mapping[int, int]
    # Largest number of processes of a comparison by the harness's rule.
    most: int
    # Number of comparisons for each rule and each copy of the reference.
    draws: int
    # Smallest relative difference of times that counts as slower or faster.
    effect: float = EFFECT
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Tally:
    """Number of comparisons with each verdict, for one rule, one copy of the reference and one condition."""

    rule: str
    # Intended slowdown of the copy in percent.
    share: int
    # Measured slowdown of the copy, as a fraction of the time of a call; None if it was not measured.
    true: float | None
    # Threshold of the verdict, as a fraction of the time of a call: only a copy with a larger slowdown should get the
    # verdict ``slower``.
    delta: float
    # Whether the verdicts of the rule refer to the threshold: ``slower`` means a difference above the threshold, and
    # ``same`` means a difference below the threshold.
    sized: bool
    # Numbers of processes and calls for one side of a comparison, as text such as ``10 × 40``.
    layout: str
    wall_s: float
    # Number of comparisons that can be drawn from the pool if no two of them share a process.
    disjoint: int
    states: dict[str, int] = field(default_factory=dict)

    @property
    def comparisons(self) -> int:
        """Number of comparisons in this tally."""
        return sum(self.states.values())

    @property
    def wrong(self) -> int:
        """Number of verdicts that contradict the true slowdown.

        For the copy without extra work, ``slower`` and ``faster`` are wrong. For a copy with extra work, ``faster`` is
        wrong. By the harness's rule, ``same`` is also wrong if the true slowdown is above the threshold, and ``slower``
        is also wrong if the true slowdown is below the threshold. By another tool's rule, ``same`` is never wrong,
        because it does not bound the difference.
        """
        if not self.share:
            return self.count("slower", "faster")
        if not self.sized or self.true is None:
            return self.count("faster")
        return self.count("faster", "same" if self.true > self.delta else "slower")

    def add(self, state: str) -> None:
        """Count a comparison whose verdict is ``state``."""
        self.states[state] = self.count(state) + 1

    def count(self, *states: str) -> int:
        """Return the number of comparisons whose verdict is one of ``states``."""
        return sum(self.states.get(state, 0) for state in states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The tallies of all rules and all copies of the reference, for one number of threads and one load."""

    condition: str
    processes: int
    # Smallest relative difference of times that counts as slower or faster.
    delta: float
    # Number of cores in use before a process began; the median over the processes.
    others: float | None
    # Number of cores that the competing process used while a process ran; the median over the processes.
    competitor: float | None
    tallies: tuple[Tally, ...]


def upper_bound(count: int, of: int, level: float = LEVEL) -> float:
    """Return the upper confidence bound of a rate, after ``count`` events in ``of`` trials.

    At this rate, ``count`` or fewer events would occur with probability 1 − ``level``.

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
    """Return the probability of at most ``count`` events in ``of`` independent trials with probability ``rate``."""
    if rate in (0.0, 1.0):
        return float(rate == 0.0 or count >= of)
    log, rest, combinations = math.log(rate), math.log1p(-rate), math.lgamma(of + 1)
    return math.fsum(
        math.exp(combinations - math.lgamma(i + 1) - math.lgamma(of - i + 1) + i * log + (of - i) * rest)
        for i in range(count + 1)
    )


def evaluate_rules(
    condition: str, pool: Pool, plants: Pool | None, settings: DrawSettings, *, starts_s: tuple[float, float]
) -> Evaluation:
    """Draw comparisons of the reference with every copy of the reference, and decide each comparison by every rule.

    ``plants`` is the pool from which the true slowdowns of the copies are estimated. ``starts_s`` has two times to
    start a process, in seconds. The first time is for a process that starts alone, as in other tools. The second time
    is for one of several processes that start together, as in the harness.
    """
    threads, delta = pool.threads, settings.effect
    cost, ours = (Cost(seconds=settings.seconds[threads], start_s=start_s, call_s=pool.call_s) for start_s in starts_s)
    # A process of the harness starts once for all cases, so a case takes one part in CASES of the start time. For each
    # case, the process builds, warms up and checks the module.
    ours = replace(ours, start_s=ours.start_s / CASES + (plants or pool).overhead_s)
    # The copy without extra work makes the same calls as the reference, so its true slowdown is 0.
    true = {0: 0.0}
    if plants:
        true |= {share: found.value - 1 for share in SHARES if share and (found := estimate_size(plants, share))}
    tallies = []
    for share in SHARES:
        make_tally = partial(Tally, share=share, true=true.get(share), delta=delta)
        tallies += [*_tally_our_rule(pool, share, ours, settings, make_tally)]
        tallies += [_tally_rule(pool, share, rule, cost, settings, make_tally) for rule in make_rules(delta)]
    return Evaluation(
        condition=condition,
        processes=len(pool.processes),
        delta=delta,
        others=_find_median([process["others"] for process in pool.processes]),
        competitor=_find_median([process["competitor"] for process in pool.processes]),
        tallies=tuple(tallies),
    )


def _tally_our_rule(
    pool: Pool, share: int, cost: Cost, settings: DrawSettings, make_tally: Callable[..., Tally]
) -> Iterator[Tally]:
    """Yield the tallies of the harness's rule: with a fixed number of processes, then with added processes.

    Processes are added while a verdict is ``unknown``. The second tally is omitted if ``settings.most`` does not exceed
    the fixed number.
    """
    count = settings.processes[pool.threads]
    calls = _count_cycles(pool, cost, count)
    one_s = cost.start_s + pool.calls_per_cycle * calls * cost.call_s
    for name, most in ((OUR_RULE, count), (f"{OUR_RULE}, up to {settings.most} processes", settings.most)):
        if most > count or name == OUR_RULE:
            used: list[int] = []
            layout = f"{count} × {calls}"
            tally = make_tally(rule=name, layout=layout, sized=True, wall_s=0.0, disjoint=len(pool.processes) // most)
            for processes in draw_comparisons(pool, max(most, count), settings):
                state, taken = _decide_state(processes, share, pool.threads, calls, count, settings.effect)
                tally.add(state)
                used.append(taken)
            tally.wall_s = one_s * sum(used) / len(used)
            yield tally


def _count_cycles(pool: Pool, cost: Cost, processes: int) -> int:
    """Return how many cycles of interleaved calls fit in the wall time of one process.

    The result is at least ``FEWEST_CALLS``, and at most ``pool.calls``.
    """
    left_s = cost.seconds / processes - cost.start_s
    return min(pool.calls, max(FEWEST_CALLS, int(left_s / pool.calls_per_cycle / cost.call_s)))


def _decide_state(
    processes: Sequence[Process], share: int, threads: int, calls: int, first: int, effect: float
) -> tuple[str, int]:
    """Return the verdict by the harness's rule, and the number of processes that the rule used.

    The rule starts with ``first`` processes, and adds processes while the verdict is ``unknown``.
    """
    taken = min(first, len(processes))
    while True:
        some = processes[:taken]
        own = make_timing(some, str(share), threads=threads, calls=calls)
        state = decide_speed(own, make_timing(some, BASE, threads=threads, calls=calls), effect=effect).state
        if state != "unknown" or taken == len(processes):
            return state, taken
        taken = min(taken + STEP, len(processes))


def _tally_rule(
    pool: Pool, share: int, rule: Rule, cost: Cost, settings: DrawSettings, make_tally: Callable[..., Tally]
) -> Tally:
    """Tally the rule of another tool, which measures the reference and its copy in different processes."""
    layout = rule.layout(cost).limit_calls(pool.calls)
    needs = 2 * layout.processes
    tally = make_tally(
        rule=rule.name,
        layout=f"{layout.processes} × {layout.values} × {layout.loops}",
        sized=False,
        wall_s=layout.wall_s,
        disjoint=len(pool.processes) // needs,
    )
    for processes in draw_comparisons(pool, needs, settings):
        tally.add(decide_by_rule(rule, layout, processes, share))
    return tally


def decide_by_rule(rule: Rule, layout: Layout, processes: Sequence[Process], share: int) -> Verdict:
    """Return the verdict of another tool, which measures one half of the processes on each side."""
    half = len(processes) // 2
    bases, news = (processes[::2], processes[1::2]) if rule.alternating else (processes[:half], processes[half:])
    # A process that other work disturbed from its start may have made fewer calls than ``layout`` needs.
    least = min(len(collect_times_ns(p, side)) for p in processes for side in (BASE, str(share)))
    fitting = layout.limit_calls(least)
    one, other = (
        [average_calls(collect_times_ns(process, side), fitting) for process in some]
        for some, side in ((bases, BASE), (news, str(share)))
    )
    return rule.verdict(one, other)


def draw_comparisons(pool: Pool, needed: int, settings: DrawSettings) -> Iterator[list[Process]]:
    """Yield ``needed`` randomly drawn processes of the pool for each comparison.

    Equal arguments give equal draws.
    """
    order = random.Random(settings.seed)  # noqa: S311  # draws, no secret
    every = list(pool.processes)
    if len(every) < needed:
        raise StudyError(
            f"a comparison needs {needed} processes, but only {len(every)} are stored: measure more (python -m "
            "research.detection runs --resume), or lower --processes, --most or --seconds"
        )
    stretch = min(2 * needed, len(every))
    for _ in range(settings.draws):
        begin = order.randrange(len(every) - stretch + 1)
        yield [every[begin + i] for i in sorted(order.sample(range(stretch), needed))]


def _find_median(numbers: Sequence[float | None]) -> float | None:
    known = sorted(number for number in numbers if number is not None)
    return known[len(known) // 2] if known else None
