"""Tests of what is left out after deaths: a check, a case, or all that is left of an implementation."""

from collections.abc import Iterable

import pytest

from attnbench.records.outcome_facts import Crashed, TooManyDeaths
from attnbench.runner.deaths import Deaths

DEATH = Crashed(how="exit", code=9)
FIRST, SECOND, THIRD = "first", "second", "third"


def run(deaths: Deaths, cases: Iterable[int], dies: Iterable[str], checks: Iterable[str] = (FIRST, SECOND)) -> None:
    """Ask the checks on each case as a run does; those in ``dies`` end the process."""
    for case in cases:
        for check in checks:
            if deaths.find_reason(str(case), [check]) is None:
                deaths.add(str(case), [check], DEATH if check in dies else None)


@pytest.mark.parametrize(("dies", "answered", "after"), [(SECOND, 0, 3), (SECOND, 1, 10)])
def test_a_check_is_left_out_alone(dies: str, answered: int, after: int) -> None:
    """A check that ends the process in many cases in a row is left out; the other checks are run."""
    deaths = Deaths()
    run(deaths, range(answered), [])
    run(deaths, range(50, 49 + after), [dies])
    assert deaths.find_reason("x", [dies]) is None
    run(deaths, [99], [dies])
    assert deaths.find_reason("x", [dies]) == TooManyDeaths(count=after, last=DEATH, of="check")
    assert deaths.find_reason("x", [FIRST]) is None


@pytest.mark.parametrize(("checks", "after"), [([SECOND, THIRD], 2), ([FIRST, SECOND, THIRD, "fourth"], 3)])
def test_the_other_checks_of_a_case_are_left_out(checks: list[str], after: int) -> None:
    """After deaths of several checks of a case in a row, the others are left out on this case alone."""
    deaths = Deaths()
    run(deaths, [0], {SECOND, THIRD, "fourth"}, checks)
    assert deaths.find_reason("0", ["other"]) == TooManyDeaths(count=after, last=DEATH, of="case")
    assert deaths.find_reason("1", ["other"]) is None


@pytest.mark.parametrize(("answered", "after"), [(0, 3), (1, 40)])
def test_an_implementation_that_answers_nothing_is_left_out(answered: int, after: int) -> None:
    """After several cases in a row without any answer, nothing is run."""
    deaths = Deaths()
    run(deaths, range(answered), [])
    run(deaths, range(50, 49 + after), [FIRST, SECOND])
    assert deaths.find_reason("x", [THIRD]) is None
    run(deaths, [99], [FIRST, SECOND])
    assert deaths.find_reason("x", [THIRD]) == TooManyDeaths(count=after, last=DEATH, of="implementation")


def test_deaths_of_whole_cases_do_not_count_against_checks() -> None:
    """Cases of a rare kind in which everything dies do not leave out a check on the other cases."""
    deaths = Deaths()
    for _ in range(9):
        run(deaths, [9], [])
        run(deaths, range(4), [FIRST, SECOND])
    assert deaths.any
    assert deaths.find_reason("x", [FIRST, SECOND]) is None


def test_requests_without_a_case_count_as_cases_of_their_own() -> None:
    """After three deaths by requests that name no case, nothing is run."""
    deaths = Deaths()
    for _ in range(3):
        assert deaths.find_reason(None, ()) is None
        deaths.add(None, (), DEATH)
    assert deaths.find_reason("x", [FIRST]) == TooManyDeaths(count=3, last=DEATH, of="implementation")
