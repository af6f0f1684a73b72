"""Tests of the comparisons that are drawn from a pool of measured processes."""

from typing import Any

import pytest

from research.detection import comparisons
from research.detection.comparisons import DrawSettings, Evaluation, Tally, evaluate_rules, upper_bound
from research.lines import StudyError
from research.tests.detection.samples import make_pool

# Seconds to start a process: alone, and together with other processes.
STARTS_S = (1.0, 1.0)


def make_settings(**changed: Any) -> DrawSettings:
    """Make settings for few draws of few processes."""
    settings = {"seconds": {1: 15.0, 2: 30.0}, "processes": {1: 10, 2: 12}, "most": 20, "draws": 20}
    return DrawSettings(**(settings | changed))


def select_tallies(found: Evaluation, rule: str) -> dict[int, Tally]:
    """Return the tallies of one rule. The key of a tally is the intended slowdown of its plant in percent."""
    return {tally.share: tally for tally in found.tallies if tally.rule == rule}


@pytest.mark.parametrize(("count", "of", "bound"), [(0, 200, 0.01487), (0, 30, 0.09503), (1, 10, 0.39416), (7, 7, 1.0)])
def test_upper_bound_is_that_of_clopper_and_pearson(count: int, of: int, bound: float) -> None:
    """The upper confidence bound is one-sided, at 95 %: for 0 events in n trials, it is 1 − 0.05^(1/n)."""
    assert upper_bound(count, of) == pytest.approx(bound, abs=1e-5)


def test_our_rule_finds_plants_and_nothing_without_one() -> None:
    """The samples of the pool are undisturbed and have little noise."""
    found = evaluate_rules("1 thread, quiet", make_pool(), make_pool(), make_settings(), starts_s=STARTS_S)
    ours = select_tallies(found, "attnbench")
    assert ours[0].states == {"same": 20}
    assert ours[0].wrong == 0
    assert ours[3].states == {"slower": 20}
    assert ours[3].true == pytest.approx(0.03, abs=0.003)
    assert ours[0].disjoint == 2


def test_our_rule_is_inconclusive_on_disturbed_samples_and_other_rules_are_not() -> None:
    """In this pool, every call waited for a core."""
    found = evaluate_rules("1 thread, busy", make_pool(disturbed=True), None, make_settings(), starts_s=STARTS_S)
    assert {tally.states["inconclusive"] for tally in select_tallies(found, "attnbench").values()} == {20}
    assert select_tallies(found, "torch.utils.benchmark")[3].states == {"slower": 20}


def test_a_failed_control_makes_our_rule_inconclusive() -> None:
    """The A/A control fails because it is 3 % slower than the reference."""
    found = evaluate_rules("1 thread, quiet", make_pool(twin=1.03), None, make_settings(), starts_s=STARTS_S)
    assert select_tallies(found, "attnbench")[3].states == {"inconclusive": 20}


def test_processes_are_added_while_our_verdict_is_unknown() -> None:
    """Five processes are too few for a verdict and ten are enough; the wall time includes the added processes."""
    settings = make_settings(processes={1: 5}, most=10)
    found = evaluate_rules("1 thread, quiet", make_pool(), None, settings, starts_s=STARTS_S)
    few, more = select_tallies(found, "attnbench"), select_tallies(found, "attnbench, up to 10 processes")
    assert few[3].states == {"unknown": 20}
    assert more[3].states == {"slower": 20}
    assert more[3].wall_s == pytest.approx(2 * few[3].wall_s)


def test_the_threshold_of_the_difference_can_be_set() -> None:
    """With a threshold of 5 %, a plant that is 2 % slower gets the verdict ``same``."""
    settings = make_settings(effect=0.05)
    found = evaluate_rules("1 thread, quiet", make_pool(), make_pool(), settings, starts_s=STARTS_S)
    assert found.delta == 0.05
    assert select_tallies(found, "attnbench")[2].states == {"same": 20}


def test_a_comparison_draws_from_neighbouring_processes_in_their_order() -> None:
    """Ten processes are drawn from twenty consecutive processes of the pool."""
    for drawn in comparisons.draw_comparisons(make_pool(processes=100), 10, make_settings(draws=50)):
        numbers = [process["seed"] for process in drawn]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] - numbers[0] < 20


def test_a_pool_that_is_too_small_is_an_error() -> None:
    """The message says how to enlarge the pool."""
    with pytest.raises(
        StudyError,
        match=r"needs 10 processes, but only 8 are stored: measure more \(python -m research.detection runs --resume\)",
    ):
        evaluate_rules("1 thread, quiet", make_pool(processes=8), None, make_settings(), starts_s=STARTS_S)


@pytest.mark.parametrize(
    ("share", "true", "sized", "wrong"),
    [(0, 0.0, True, 5), (2, 0.02, True, 6), (2, 0.005, True, 5), (2, None, True, 2), (2, 0.02, False, 2)],
)
def test_a_wrong_verdict_contradicts_the_true_slowdown(share: int, true: float | None, sized: bool, wrong: int) -> None:
    """The verdicts are 3 ``slower``, 2 ``faster`` and 4 ``same``; the threshold is 1 %."""
    tally = Tally(
        rule="", share=share, true=true, delta=0.01, sized=sized, layout="", wall_s=0.0, disjoint=1,
        states={"slower": 3, "faster": 2, "same": 4},
    )  # fmt: skip
    assert tally.wrong == wrong
