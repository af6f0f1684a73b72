"""Tests of the rules by which other benchmark tools decide."""

import random

import pytest

from research.detection import rules
from research.detection.rules import Cost, Layout
from research.tests.detection.samples import draw_values

COST = Cost(seconds=15.0, start_s=1.0, call_s=0.0025)


@pytest.mark.parametrize(("freedom", "critical"), [(4, 2.776), (10, 2.228), (20, 2.086), (120, 1.980)])
def test_student_critical_agrees_with_published_tables(freedom: int, critical: float) -> None:
    """The critical values are two-sided, at 95 %."""
    assert rules.student_critical(freedom) == pytest.approx(critical, rel=0.003)


def test_mann_whitney_p_of_separated_samples_counts_orderings() -> None:
    """Of the 252 orderings of five and five samples, two are as extreme as the tested ordering."""
    assert rules.mann_whitney_p([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(2 / 252)


@pytest.mark.parametrize("counts", [(5, 5), (10, 10), (7, 12), (25, 30)])
def test_mann_whitney_p_equals_that_of_asv(counts: tuple[int, int]) -> None:
    """Up to twenty samples per side, the p-value is exact. With more samples, it is that of a normal approximation.

    Ties between the two sides make a difference less significant.
    """
    theirs = pytest.importorskip("asv._stats")
    draw = random.Random(sum(counts))
    for shift in (0, 2, 5):
        one, other = ([draw.randrange(12) + by for _ in range(n)] for n, by in zip(counts, (0, shift), strict=True))
        _, expected = theirs.mann_whitney_u(one, other)
        assert rules.mann_whitney_p(one, other) == pytest.approx(min(1.0, expected), rel=1e-6)


def test_pyperf_treats_the_values_of_a_process_as_independent() -> None:
    """Four processes that differ from one another, with three values each, count as twelve independent values."""
    base = [[1.00, 1.00, 1.00], [1.01, 1.01, 1.01], [1.00, 1.00, 1.00], [1.01, 1.01, 1.01]]
    new = [[value * 1.006 for value in process] for process in base]
    assert rules.decide_by_pyperf(base, new) == "slower"
    assert rules.decide_by_pyperf(new, base) == "faster"
    assert rules.decide_by_pyperf(base, new, least=0.01) == "same"
    assert rules.decide_by_pyperf(base, [[value * 1.001 for value in process] for process in base]) == "same"
    assert rules.decide_by_pyperf(base, base) == "same"


def test_pyperf_treats_sides_of_unequal_size_as_different() -> None:
    """The t-test of pyperf raises an error, and pyperf counts the error as a significant difference."""
    assert rules.decide_by_pyperf([[1.0, 1.2, 0.8]], [[1.001, 1.201, 0.801, 1.001]]) == "slower"


def test_asv_needs_significance_and_a_factor() -> None:
    """The verdict is ``same`` if the change is small, if it is not significant, or if there are too few samples."""
    base = [draw_values(1.0, count=5, seed=seed, spread=0.002) for seed in range(2)]
    larger = [[value * 1.12 for value in process] for process in base]
    smaller = [[value * 1.08 for value in process] for process in base]
    assert rules.decide_by_asv(base, larger) == "slower"
    assert rules.decide_by_asv(larger, base) == "faster"
    assert rules.decide_by_asv(base, smaller) == "same"
    assert rules.decide_by_asv(base, smaller, factor=1.05) == "slower"
    assert rules.decide_by_asv(base[:1], larger[:1]) == "same"
    assert rules.decide_by_asv([[1, 2, 3, 4, 5, 6, 7]], [[2, 3, 4, 5, 6, 7, 8]]) == "same"


def test_pytest_benchmark_compares_one_number_with_a_threshold() -> None:
    """The compared number is the minimum or the median of the rounds; a speed-up is not reported."""
    decide = rules.decide_by_pytest_benchmark
    assert decide([[1.0, 9.0]], [[1.06, 1.06]], field="min") == "slower"
    assert decide([[1.0, 9.0]], [[1.04, 9.0]], field="min") == "same"
    assert decide([[1.0, 1.0, 9.0]], [[1.02, 1.02, 1.02]], field="median", threshold=0.01) == "slower"
    assert decide([[2.0]], [[1.0]], field="median") == "same"


def test_torch_treats_medians_within_a_percent_as_equal() -> None:
    """Medians that differ by more than 1 % give ``slower`` or ``faster``."""
    assert rules.decide_by_torch([[1.0]], [[1.009]]) == "same"
    assert rules.decide_by_torch([[1.0]], [[1.02]]) == "slower"
    assert rules.decide_by_torch([[1.02]], [[1.0]]) == "faster"


def test_criterion_needs_significance_and_an_interval_beyond_its_noise_threshold() -> None:
    """A significant change of half a percent and an insignificant one of three percent give ``same``."""
    base = [draw_values(1.0, count=100, seed=1, spread=0.005)]
    assert rules.decide_by_criterion(base, [draw_values(1.03, count=100, seed=2, spread=0.005)]) == "slower"
    assert rules.decide_by_criterion([draw_values(1.03, count=100, seed=2, spread=0.005)], base) == "faster"
    assert rules.decide_by_criterion(base, [draw_values(1.005, count=100, seed=2, spread=0.005)]) == "same"
    assert rules.decide_by_criterion(base, [draw_values(1.03, count=100, seed=2, spread=0.2)]) == "same"
    assert rules.decide_by_criterion(base, base) == "same"
    assert rules.decide_by_criterion([[1.0, 1.0]], [[1.1, 1.1]]) == "slower"


def test_a_tool_gets_as_many_processes_as_fit_in_the_time_but_no_fewer_than_it_needs() -> None:
    """If the time is too short, a tool still gets the one or two processes per side that it needs.

    The sides are the base and the new code.
    """
    layouts = {rule.name: rule.layout(COST) for rule in rules.make_rules(0.01)}
    assert all(layout.wall_s <= COST.seconds for name, layout in layouts.items() if name != "Criterion")
    # pyperf doubles the number of calls until a value takes 0.1 s: 64 calls of 2.5 ms take 0.16 s. A process takes
    # 1.64 s: 1 s to start, and 0.64 s for one warm-up value and three values. Four processes fit in 7.5 s, which is
    # half of the time, for one of the two sides.
    assert (layouts["pyperf compare_to"].processes, layouts["pyperf compare_to"].loops) == (4, 64)
    assert (layouts["asv continuous"].values, layouts["asv continuous"].loops) == (5, 4)
    assert layouts["pytest-benchmark median:δ"].values == 400
    assert (layouts["torch.utils.benchmark"].values, layouts["torch.utils.benchmark"].loops) == (80, 1)
    assert layouts["Criterion"].loops == 20
    short = Cost(seconds=0.1, start_s=1.0, call_s=0.0025)
    assert {rule.layout(short).processes for rule in rules.make_rules(0.01)} == {1, 2}


def test_a_value_is_the_mean_of_consecutive_calls() -> None:
    """If a process made fewer calls than the tool would make, a value is the mean of fewer calls."""
    layout = Layout(processes=1, values=2, loops=3, wall_s=1.0)
    assert rules.average_calls([1, 2, 3, 4, 5, 6, 7], layout) == [2, 5]
    assert layout.limit_calls(5) == Layout(processes=1, values=2, loops=2, wall_s=1.0)
    assert layout.limit_calls(1) == Layout(processes=1, values=1, loops=1, wall_s=1.0)
