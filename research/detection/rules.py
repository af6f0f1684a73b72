"""Rules by which other benchmark tools decide whether new code is slower than the base, applied to stored samples.

Each rule uses the tool's default numbers of values. A tool that can use more processes gets as many as fit in the wall
time of a comparison by attnbench. The base and the new code are the two sides of a comparison. A side is a list of
processes, a process is a list of values, and a value is the mean time of consecutive calls.

Sources: pyperf ``_utils.is_significant``; asv ``_stats.is_different`` and ``commands/compare.py``; pytest-benchmark
``utils.PercentageRegressionCheck``; ``torch.utils.benchmark.utils.compare``; Criterion ``src/analysis/compare.rs``.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Cost",
    "Layout",
    "Rule",
    "Side",
    "Verdict",
    "average_calls",
    "make_rules",
    "mann_whitney_p",
    "student_critical",
]

Verdict = Literal["faster", "slower", "same"]
Side = Sequence[Sequence[float]]

# Defaults of pyperf. PYPERF_VALUES: values per process. PYPERF_VALUE_S: minimum seconds of a value. PYPERF_WARM_UPS:
# warm-up values. PYPERF_PROCESSES: processes.
PYPERF_VALUES, PYPERF_VALUE_S, PYPERF_WARM_UPS, PYPERF_PROCESSES = 3, 0.1, 1, 20
# Defaults of asv. ASV_SAMPLE_S: seconds of a sample. ASV_WARM_UP_S: seconds of the warm-up. ASV_SAMPLES: samples per
# round. ASV_ROUNDS: rounds (one process each). ASV_LEVEL: significance level. ASV_FACTOR: factor by which the medians
# must differ.
ASV_SAMPLE_S, ASV_WARM_UP_S, ASV_SAMPLES, ASV_ROUNDS, ASV_LEVEL, ASV_FACTOR = 0.01, 0.1, 5, 2, 0.002, 1.1
# Largest number of samples of one side for which asv uses the exact distribution of Mann and Whitney's U.
ASV_EXACT = 20
# pytest-benchmark. PYTEST_S: default seconds of all rounds. PYTEST_ROUNDS: default smallest number of rounds.
# PYTEST_THRESHOLD: threshold of an example in its documentation.
PYTEST_S, PYTEST_ROUNDS, PYTEST_THRESHOLD = 1.0, 5, 0.05
# Defaults of torch.utils.benchmark. TORCH_S: seconds of all blocks. TORCH_BLOCK_S: minimum seconds of a block.
# TORCH_BAND: relative difference up to which ``Compare`` highlights two times as equally good.
TORCH_S, TORCH_BLOCK_S, TORCH_BAND = 0.2, 0.0006, 0.01
# Defaults of Criterion. CRITERION_WARM_UP_S: seconds of the warm-up. CRITERION_S: seconds of all samples.
# CRITERION_SAMPLES: number of samples. CRITERION_LEVEL: significance level. CRITERION_NOISE: noise threshold.
CRITERION_WARM_UP_S, CRITERION_S, CRITERION_SAMPLES, CRITERION_LEVEL, CRITERION_NOISE = 3.0, 5.0, 100, 0.05, 0.01
# Number of bootstrap draws. Criterion itself makes 100,000 draws, and its interval is slightly wider than the interval
# from this number of draws.
CRITERION_DRAWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds that a comparison may take, and seconds of its parts."""

    # Wall time of the whole comparison in seconds, for both sides (the base and the new code) together.
    seconds: float
    # Seconds to start a process.
    start_s: float
    # Seconds of one call.
    call_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Numbers of processes and calls that a tool measures."""

    # Number of processes for one side (the base or the new code).
    processes: int
    # Number of values that one process measures.
    values: int
    # Number of calls for one value. The value is the mean time of these calls.
    loops: int
    # Wall time of the comparison in seconds.
    wall_s: float

    def limit_calls(self, calls: int) -> "Layout":
        """Return a layout with fewer values or fewer calls per value, so that a process has at most ``calls`` calls."""
        values = min(self.values, calls)
        return replace(self, values=values, loops=max(1, min(self.loops, calls // values)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The rule of one tool: how many processes and calls the tool measures, and how it decides."""

    name: str
    layout: Callable[[Cost], Layout]
    verdict: Callable[[Side, Side], Verdict]
    # Whether processes of the base and of the new code alternate. If not, all processes of the base come first.
    alternating: bool = False


def make_rules(delta: float) -> tuple[Rule, ...]:
    """Return the rules of all tools.

    Some rules have the threshold ``delta``. The other rules have the tool's default threshold, or a threshold from its
    documentation.
    """
    return (
        Rule(name="pyperf compare_to", layout=_lay_out_pyperf, verdict=decide_by_pyperf),
        Rule(name="pyperf --min-speed=δ", layout=_lay_out_pyperf, verdict=partial(decide_by_pyperf, least=delta)),
        Rule(name="asv continuous", layout=_lay_out_asv, verdict=decide_by_asv, alternating=True),
        Rule(
            name="asv continuous -f 1+δ",
            layout=_lay_out_asv,
            verdict=partial(decide_by_asv, factor=1 + delta),
            alternating=True,
        ),
        Rule(
            name="pytest-benchmark min:5%",
            layout=_lay_out_pytest_benchmark,
            verdict=partial(decide_by_pytest_benchmark, field="min"),
        ),
        Rule(
            name="pytest-benchmark median:δ",
            layout=_lay_out_pytest_benchmark,
            verdict=partial(decide_by_pytest_benchmark, field="median", threshold=delta),
        ),
        Rule(name="torch.utils.benchmark", layout=_lay_out_torch, verdict=decide_by_torch),
        Rule(name="Criterion", layout=_lay_out_criterion, verdict=decide_by_criterion),
    )


def average_calls(calls_ns: Sequence[float], layout: Layout) -> list[float]:
    """Return the values of a process: means of ``layout.loops`` consecutive calls."""
    return [
        statistics.fmean(calls_ns[number * layout.loops : (number + 1) * layout.loops])
        for number in range(min(layout.values, len(calls_ns) // layout.loops))
    ]


def decide_by_pyperf(base: Side, new: Side, *, least: float = 0.0) -> Verdict:
    """Decide by Student's t-test at 95 %, as if all values were independent.

    Changes up to ``least`` count as ``same``. If the base and the new code have different numbers of values, pyperf's
    test raises an error. Pyperf then reports a significant difference.
    """
    one, other = _flatten(base), _flatten(new)
    change = statistics.fmean(other) / statistics.fmean(one) - 1
    if len(one) == len(other):
        error = math.sqrt((statistics.variance(one) + statistics.variance(other)) / len(one))
        difference = abs(statistics.fmean(other) - statistics.fmean(one))
        if difference < student_critical(2 * len(one) - 2) * error or not difference:
            return "same"
    return _apply_threshold(change, least)


def decide_by_asv(base: Side, new: Side, *, factor: float = ASV_FACTOR) -> Verdict:
    """Decide by Mann and Whitney's U over all samples, and by the factor by which the medians differ.

    The verdict is ``same`` if there are too few samples for U to be significant.
    """
    one, other = _flatten(base), _flatten(new)
    if 1 / math.comb(len(one) + len(other), min(len(one), len(other))) >= ASV_LEVEL:
        return "same"
    if mann_whitney_p(one, other) >= ASV_LEVEL:
        return "same"
    was, is_now = statistics.median(one), statistics.median(other)
    return "slower" if was < is_now / factor else "faster" if is_now < was / factor else "same"


def decide_by_pytest_benchmark(
    base: Side, new: Side, *, field: Literal["min", "median"], threshold: float = PYTEST_THRESHOLD
) -> Verdict:
    """Decide ``slower`` if the minimum or median has grown by more than a threshold; a speed-up is not reported."""
    reduce: Callable[[Sequence[float]], float] = min if field == "min" else statistics.median
    return "slower" if reduce(_flatten(new)) / reduce(_flatten(base)) - 1 > threshold else "same"


def decide_by_torch(base: Side, new: Side) -> Verdict:
    """Decide by the medians: ``same`` if torch's ``Compare`` would highlight both medians as equally good."""
    return _apply_threshold(statistics.median(_flatten(new)) / statistics.median(_flatten(base)) - 1, TORCH_BAND)


def decide_by_criterion(base: Side, new: Side) -> Verdict:
    """Decide by a t-test over the samples and by the noise threshold.

    A significant change counts if its whole confidence interval is beyond the noise threshold. The p-value is that of
    Welch's t-test, whereas Criterion bootstraps the distribution of t.
    """
    one, other = np.array(_flatten(base)), np.array(_flatten(new))
    parts = one.var(ddof=1) / len(one), other.var(ddof=1) / len(other)
    error = math.sqrt(sum(parts))
    difference = abs(float(other.mean() - one.mean()))
    if not difference:
        return "same"
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(one) - 1) + parts[1] ** 2 / (len(other) - 1)) if error else 1e9
    if difference < student_critical(freedom) * error:
        return "same"
    changes = other[_draw_indices(len(other), 1)].mean(axis=1) / one[_draw_indices(len(one), 0)].mean(axis=1) - 1
    low, high = np.quantile(changes, (CRITERION_LEVEL / 2, 1 - CRITERION_LEVEL / 2))
    return "slower" if low > CRITERION_NOISE else "faster" if high < -CRITERION_NOISE else "same"


def student_critical(freedom: float) -> float:
    """Return the two-sided critical value of Student's t at 95 %; ``freedom`` is the number of degrees of freedom.

    With at least four degrees of freedom, the value is accurate to 0.3 %.
    Source: Abramowitz and Stegun, 26.7.5.
    """
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))


def mann_whitney_p(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the two-sided p-value of Mann and Whitney's U.

    Ties are broken in the order that makes a difference least significant.
    """
    pairs = len(one) * len(other)
    above = sum(a > b for a in one for b in other)
    ties = sum(a == b for a in one for b in other)
    # Break ties so that U is as close to its mean as possible.
    u = min(max(above, min(pairs // 2, above + ties)), pairs)
    u = min(u, pairs - u)
    if max(len(one), len(other)) > ASV_EXACT:
        z = (u - pairs / 2) / math.sqrt(pairs * (len(one) + len(other) + 1) / 12)
        return min(1.0, 2 * statistics.NormalDist().cdf(z))
    ways = _count_orderings(len(one), len(other))
    return min(1.0, 2 * sum(ways[: u + 1]) / math.comb(len(one) + len(other), len(one)))


@cache
def _count_orderings(m: int, n: int) -> tuple[int, ...]:
    """Return how many orderings of m and n samples give each value of Mann and Whitney's U.

    These numbers are the coefficients of the Gaussian binomial.
    """
    ways = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):  # multiply the polynomial by 1 − x^(n+i)
            ways[u] -= ways[u - n - i]
        for u in range(i, m * n + 1):  # divide the polynomial by 1 − x^i
            ways[u] += ways[u - i]
    return tuple(ways)


@cache
def _draw_indices(count: int, seed: int) -> NDArray[np.int64]:
    """Draw the indices of bootstrap samples. Equal arguments give equal indices."""
    return np.random.default_rng(seed).integers(count, size=(CRITERION_DRAWS, count))


def _flatten(side: Side) -> list[float]:
    return [value for process in side for value in process]


def _apply_threshold(change: float, threshold: float) -> Verdict:
    return "slower" if change > threshold else "faster" if change < -threshold else "same"


def _lay_out(cost: Cost, *, most: int, fewest: int, warm_up_s: float, values: int, loops: int) -> Layout:
    """Plan as many processes per side as fit in the wall time, but at least ``fewest`` and at most ``most``."""
    one_s = cost.start_s + warm_up_s + values * loops * cost.call_s
    processes = max(fewest, min(most, int(cost.seconds / 2 / one_s)))
    return Layout(processes=processes, values=values, loops=loops, wall_s=2 * processes * one_s)


def _lay_out_pyperf(cost: Cost) -> Layout:
    loops = 2 ** max(0, math.ceil(math.log2(PYPERF_VALUE_S / cost.call_s)))
    warm_up_s = PYPERF_WARM_UPS * loops * cost.call_s
    return _lay_out(cost, most=PYPERF_PROCESSES, fewest=2, warm_up_s=warm_up_s, values=PYPERF_VALUES, loops=loops)


def _lay_out_asv(cost: Cost) -> Layout:
    loops = max(1, math.ceil(ASV_SAMPLE_S / cost.call_s))
    # asv runs one process per round. It runs more rounds than its default only if a benchmark asks for them. Here, as
    # many rounds are run as fit in the wall time.
    return _lay_out(
        cost, most=PYPERF_PROCESSES, fewest=ASV_ROUNDS, warm_up_s=ASV_WARM_UP_S, values=ASV_SAMPLES, loops=loops
    )


def _lay_out_pytest_benchmark(cost: Cost) -> Layout:
    rounds = max(PYTEST_ROUNDS, int(PYTEST_S / cost.call_s))
    return _lay_out(cost, most=1, fewest=1, warm_up_s=0.0, values=rounds, loops=1)


def _lay_out_torch(cost: Cost) -> Layout:
    loops = 10 ** max(0, math.ceil(math.log10(TORCH_BLOCK_S / cost.call_s)))
    blocks = math.ceil(TORCH_S / (loops * cost.call_s))
    return _lay_out(cost, most=1, fewest=1, warm_up_s=2 * loops * cost.call_s, values=blocks, loops=loops)


def _lay_out_criterion(cost: Cost) -> Layout:
    loops = max(1, int(CRITERION_S / CRITERION_SAMPLES / cost.call_s))
    return _lay_out(cost, most=1, fewest=1, warm_up_s=CRITERION_WARM_UP_S, values=CRITERION_SAMPLES, loops=loops)
