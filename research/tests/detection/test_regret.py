"""Tests of the study of the bound on regret."""

from research.detection.comparisons import DrawSettings
from research.detection.regret import evaluate_regret, format_regret_table
from research.tests.detection.samples import make_pool

SETTINGS = DrawSettings(seconds={}, processes={}, most=0, draws=20)


def test_copies_with_extra_work_are_not_chosen() -> None:
    """On a quiet machine, the reference or the copy that makes the same calls is chosen, with a bound that holds."""
    tallies = evaluate_regret("quiet", make_pool(), make_pool(), SETTINGS)
    assert {(one.first, one.most) for one in tallies} == {(7, 12)}
    assert [one.field for one in tallies] == ["identical code", "2 % slower", "3 % slower", "all copies"]
    for one in tallies:
        assert (one.answers, one.decided, one.unbounded) == (20, 20, 0)
        assert one.false <= 1
        assert one.first <= one.processes <= one.most


def test_a_bound_that_is_too_small_is_counted() -> None:
    """If the true times differ from those of the pool, the told bounds are false: the study would see a wrong rule."""
    tallies = evaluate_regret("quiet", make_pool(extra=-0.01), make_pool(), SETTINGS)
    assert [one.false for one in tallies if one.field == "3 % slower"] == [20]


def test_disturbed_processes_give_no_bound() -> None:
    """Answers without a bound promise nothing, and are counted apart."""
    tallies = evaluate_regret("busy", make_pool(disturbed=True), None, SETTINGS)
    assert [(one.field, one.unbounded, one.false) for one in tallies] == [("identical code", 20, 0)]
    assert tallies[0].processes == tallies[0].most


def test_the_table_has_a_row_for_each_question() -> None:
    """Rates have their upper confidence bounds."""
    tallies = evaluate_regret("quiet", make_pool(), None, SETTINGS)
    lines = format_regret_table(tallies).splitlines()
    assert len(lines) == 2 + len(tallies)
    assert {line.count("|") for line in lines} == {10}
