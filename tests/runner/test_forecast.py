"""Tests of the forecast of the time that a profile takes."""

from dataclasses import replace
from typing import Any

import pytest

from attnbench.runner import Effort, Plan, Speed, forecast

CASE = "multihead/B1.L{0}.S{0}.E256.H4/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/train"
EFFORT = Effort(processes=7, budget_s=0.3)
SPEED = Speed(threads=2, flop_per_s={("cpu", "float32"): 1e11})


def make_plan(length: int, missing: str | None = None) -> Plan:
    """Return a plan of a case with this length."""
    return Plan(case=CASE.format(length), checks=("forward_parity",), missing=missing, flop=length * 10**7)


def plan_s(*plans: Plan, timed: int = 1, effort: Effort = EFFORT, speed: Speed = SPEED, **others: Any) -> float:
    """Return the forecast with the planned processes; ``timed`` implementations are timed on each case."""
    cases = [plan.case for plan in plans]
    return forecast(plans, {str(n): cases for n in range(timed)}, effort, speed=speed, **others).planned_s


def test_the_forecast_grows_with_all_that_is_timed() -> None:
    """More cases, implementations, processes and operations, and a slower machine, take longer."""
    base = plan_s(make_plan(128))
    for longer in (
        plan_s(make_plan(128), make_plan(256)),
        plan_s(make_plan(128), timed=2),
        plan_s(make_plan(128), compiling=["0"]),
        plan_s(make_plan(128), effort=replace(EFFORT, processes=14)),
        plan_s(make_plan(1024)),
        plan_s(replace(make_plan(128), model_runs=100)),
        plan_s(replace(make_plan(128), pairs=10**7)),
        plan_s(make_plan(128), speed=replace(SPEED, threads=1)),
        plan_s(make_plan(128), speed=replace(SPEED, flop_per_s={("cpu", "float32"): 1e10})),
    ):
        assert longer > base


def test_added_processes_are_counted_separately() -> None:
    """The planned processes take as long as before, and all processes take longer."""
    plan = make_plan(128)
    one, added = (forecast([plan], {"0": [plan.case]}, replace(EFFORT, most=most), speed=SPEED) for most in (None, 30))
    assert one.most_s == one.planned_s == added.planned_s < added.most_s


def test_expected_values_are_computed_once_for_all_implementations() -> None:
    """Further implementations make the calls of a case, and do not make its expected values again."""
    plan = make_plan(1024)
    slow = replace(plan, model_runs=1000)
    assert plan_s(slow) - plan_s(plan) == pytest.approx(plan_s(slow, timed=9) - plan_s(plan, timed=9))


def test_the_time_limit_of_a_case_holds() -> None:
    """With --case-budget, added processes cost at most the time limit of each case."""
    plans = [make_plan(128), make_plan(256)]
    free, limited = (
        plan_s(*plans, effort=Effort(processes=100, budget_s=1.0, case_s=case_s)) for case_s in (None, 10.0)
    )
    assert free - limited > 100


def test_cases_that_cannot_run_take_no_time() -> None:
    """A case that this machine cannot run, or that every implementation refuses, adds no time for calls."""
    plan = make_plan(128)
    alone = plan_s(plan)
    assert plan_s(plan, make_plan(100, "x")) == alone
    refused = make_plan(100)
    assert forecast([plan, refused], {"0": [plan.case]}, EFFORT, speed=SPEED).planned_s == alone
