"""Tests of the estimated time of cases."""

from pathlib import Path

import pytest

from attnbench.runner import Effort, Plan
from attnbench.sweep.estimates import CHECK_S, CHECK_START_S, make_estimates
from sweep_folders import case_of, write_run

PLANS = [Plan(case=case_of(length), checks=(), missing=None, flop=10**6 * length) for length in (4, 8)]


def test_without_earlier_runs_it_is_a_forecast(tmp_path: Path) -> None:
    """The origin says that the numbers are from another machine."""
    found = make_estimates(
        PLANS,
        ["multihead"] * 2,
        kind="conform",
        effort=Effort(processes=7, budget_s=0.3),
        threads=2,
        earlier=[tmp_path],
    )
    assert found.cases == {case_of(4): 2 * CHECK_S, case_of(8): 2 * CHECK_S}
    assert found.origin == "a forecast for two cores of a server CPU, since no earlier run of this kind was found"


def test_earlier_runs_correct_the_forecast(tmp_path: Path) -> None:
    """Two implementations took 56 s on 2 cases after the start: the forecast of 0.4 s is multiplied by 140."""
    write_run(tmp_path / "some-cpu" / "one.jsonl", [4, 8], took_s=int(CHECK_START_S) + 56 - 10)
    found = make_estimates(
        PLANS,
        ["multihead"] * 2,
        kind="conform",
        effort=Effort(processes=7, budget_s=0.3),
        threads=2,
        earlier=[tmp_path],
    )
    assert found.cases[case_of(4)] == pytest.approx((56 - 10) / 2)
    assert found.origin == f"a forecast times {46 / 0.4:.2g}, from 1 earlier run"


def test_runs_of_another_kind_do_not_count(tmp_path: Path) -> None:
    """The time of a suite says nothing about a profile, whose longer cases take longer."""
    write_run(tmp_path / "some-cpu" / "one.jsonl", [4, 8])
    found = make_estimates(
        PLANS,
        ["multihead"] * 2,
        kind="profile",
        effort=Effort(processes=7, budget_s=0.3),
        threads=2,
        earlier=[tmp_path],
    )
    assert "no earlier run of this kind" in found.origin
    assert 0 < found.cases[case_of(4)] < found.cases[case_of(8)]
    assert found.start_s > CHECK_START_S
