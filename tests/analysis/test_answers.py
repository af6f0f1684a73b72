"""Tests of the bounds over pairs, and of the answer with the smallest bound on its regret."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from attnbench.analysis.answers import choose, list_possible
from attnbench.analysis.pairs import PairBounds, bound_pairs
from attnbench.analysis.stats import bound_median, student_quantile
from attnbench.records.types import Timing

CALL_NS = 1_000_000
CALLS = 9


def make_timing(*processes: float, waits: int = 0) -> Timing:
    """Make a timing with one factor for each process; every call of the first ``waits`` processes waited for a core."""
    count = len(processes)
    return Timing(
        samples_ns=tuple((round(factor * CALL_NS),) * CALLS for factor in processes),
        waited_ns=tuple(((CALL_NS if number < waits else 0),) * CALLS for number in range(count)),
        cycles=(tuple(range(CALLS)),) * count,
        threads=1,
    )


def bound(**timings: Timing) -> PairBounds:
    """Return the bounds of all timings; the baseline is ``base``."""
    return bound_pairs(timings, "base", timings)


@pytest.mark.parametrize(
    ("tail", "freedom", "value"),
    [(0.025, 1, 12.706), (0.025, 2, 4.303), (0.025, 5, 2.571), (0.005, 9, 3.250), (0.0005, 10, 4.587)],
)
def test_quantiles_of_students_t_are_those_of_the_tables(tail: float, freedom: int, value: float) -> None:
    """Source: Abramowitz and Stegun, table 26.10."""
    assert student_quantile(tail, freedom) == pytest.approx(value, abs=5e-4)


def test_a_bound_is_an_order_statistic_where_the_processes_suffice() -> None:
    """With ten processes, at most the tail lies above the second largest; with a smaller tail, above the largest."""
    values = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9]
    assert bound_median(values, 0.011) == 1.8
    assert bound_median(values, 0.005) == 1.9


def test_a_bound_of_few_processes_is_never_below_the_largest() -> None:
    """With too few processes for an order statistic, the bound is above all of them; with one, there is none."""
    assert bound_median([1.0, 1.02, 1.01], 0.01) > 1.02
    assert bound_median([1.0, 1.0, 1.0], 0.01) == 1.0
    assert bound_median([1.0], 0.01) == math.inf
    tails = (0.04, 0.02, 0.01, 0.005)
    assert all(one < other for one, other in pairwise(bound_median([1.0, 1.02, 1.01], tail) for tail in tails))


@pytest.mark.parametrize("processes", [3, 7, 12])
def test_a_bound_is_exceeded_no_more_often_than_its_tail(processes: int) -> None:
    """Over 2,000 draws of normal logarithms, the true median 1 is above the bound in at most 5 % and a chance error."""
    source, draws = random.Random(1), 2000
    above = sum(
        bound_median([math.exp(source.gauss(0, 0.01)) for _ in range(processes)], 0.05) < 1 for _ in range(draws)
    )
    assert above <= 0.05 * draws + 3 * math.sqrt(0.05 * draws)


def test_a_pair_is_compared_directly() -> None:
    """The ratio of two implementations is not taken through the baseline, which may have been disturbed."""
    drift = [1.0 + 0.1 * number for number in range(10)]
    found = bound(base=make_timing(*[1.0] * 10), own=make_timing(*drift), other=make_timing(*[0.98 * d for d in drift]))
    assert found.over["own"]["other"] == pytest.approx(1 / 0.98, rel=1e-3)
    assert found.over["other"]["own"] == pytest.approx(0.98, rel=1e-3)
    assert found.over["own"]["base"] > 1.5


def test_the_calls_of_the_baselines_copy_count_as_its_own() -> None:
    """Where each cycle called either the baseline or its copy, the ratios come from the cycles of both."""
    base = replace(make_timing(*[1.0] * 10), cycles=((*range(0, 18, 2),),) * 10)
    twin = replace(make_timing(*[1.2] * 10), cycles=((*range(1, 18, 2),),) * 10)
    own = Timing(samples_ns=((CALL_NS,) * 18,) * 10, cycles=(tuple(range(18)),) * 10, threads=1)
    found = bound(base=replace(base, twin=twin), own=own)
    assert found.over["own"]["base"] == pytest.approx((1 + 1 / 1.2) / 2, rel=1e-6)
    assert found.control_failed


def test_only_what_may_be_chosen_has_bounds() -> None:
    """An implementation that fails checks is neither chosen nor anything to be behind."""
    timings = {"base": make_timing(*[1.0] * 10), "wrong": make_timing(*[0.5] * 10)}
    found = bound_pairs(timings, "base", ["base"])
    assert (found.over, found.processes) == ({"base": {}}, 10)
    answer = choose(found, {"base": 1.0}, ["base"])
    assert answer is not None
    assert (answer.name, answer.regret, answer.unbounded) == ("base", None, "alone")


@pytest.mark.parametrize(("waits", "bounded"), [(0, True), (2, True), (3, False)])
def test_an_implementation_cannot_choose_its_processes(waits: int, bounded: bool) -> None:
    """If only its own calls waited in more than a fifth of the processes, its bound over another one is infinite."""
    found = bound(base=make_timing(*[1.0] * 13), own=make_timing(*[0.5] * 13, waits=waits))
    assert math.isfinite(found.over["own"]["base"]) is bounded


def test_too_few_undisturbed_processes_give_no_bound() -> None:
    """Eight processes must count, or all of fewer than eight; the answer then says that they were disturbed."""
    waiting = {name: make_timing(*[factor] * 10, waits=3) for name, factor in (("base", 1.0), ("own", 0.5))}
    answer = choose(bound(**waiting), {"base": 1.0, "own": 0.5}, ["base", "own"])
    assert answer is not None
    assert (answer.name, answer.regret, answer.unbounded, answer.more_would_help) == ("own", None, "disturbed", True)


def test_the_answer_has_the_smallest_worst_case() -> None:
    """An implementation that is a little behind everywhere is chosen before one that is far behind somewhere."""
    over = {"a": {"b": 0.9, "c": 1.2}, "b": {"a": 1.03, "c": 1.02}, "c": {"a": 1.05, "b": 1.04}}
    bounds = PairBounds(over=over, processes=10)
    answer = choose(bounds, {}, over)
    assert answer is not None
    assert (answer.name, answer.behind, answer.decided, answer.more_would_help) == ("b", "a", False, True)
    assert answer.regret == pytest.approx(0.03)
    fewer = choose(bounds, {}, ["a", "b"])
    assert fewer is not None
    assert (fewer.name, fewer.regret, fewer.decided) == ("a", 0.0, True)
    assert choose(bounds, {}, ["d"]) is None


def test_a_failed_control_leaves_no_bound() -> None:
    """Where the baseline differs from its copy, no time can be trusted; more processes do not help."""
    bounds = PairBounds(over={"a": {"b": 0.9}, "b": {"a": 1.2}}, processes=10, control_failed=True)
    answer = choose(bounds, {"a": 2.0, "b": 1.0}, ["a", "b"])
    assert answer is not None
    assert (answer.regret, answer.unbounded, answer.more_would_help) == (None, "control", False)


def test_what_another_one_beats_beyond_doubt_cannot_be_the_fastest() -> None:
    """Further processes time only what may be the fastest."""
    over = {"a": {"b": 0.98, "c": 0.995}, "b": {"a": 1.1, "c": 1.1}, "c": {"a": 1.02, "b": 0.97}}
    assert list_possible(PairBounds(over=over, processes=10)) == ["a", "c"]
