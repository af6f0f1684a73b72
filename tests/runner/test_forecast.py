"""Tests of the forecast of the time that a profile takes."""

from attnbench.runner import Effort, Plan, forecast

CASE = "multihead/B1.L{0}.S{0}.E256.H4/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/train"


def make_plan(length: int, missing: str | None = None) -> Plan:
    """Return a plan of a case with this length."""
    return Plan(case=CASE.format(length), checks=("forward_parity",), missing=missing, flop=length * 10**7)


def test_the_forecast_grows_with_all_that_is_timed() -> None:
    """More cases, implementations, processes and operations take longer; added processes are counted separately."""
    effort = Effort(processes=7, budget_s=0.3)
    base = forecast([make_plan(128)], ["multihead"], effort, threads=2)
    assert (base.cases, base.implementations) == (1, 1)
    assert base.most_s == base.planned_s
    for longer in (
        forecast([make_plan(128), make_plan(256)], ["multihead"], effort, threads=2),
        forecast([make_plan(128)], ["multihead"] * 2, effort, threads=2),
        forecast([make_plan(128)], ["multihead"], Effort(processes=14, budget_s=0.3), threads=2),
        forecast([make_plan(1024)], ["multihead"], effort, threads=2),
        forecast([make_plan(128)], ["multihead"], effort, threads=1),
    ):
        assert longer.planned_s > base.planned_s
    added = forecast([make_plan(128)], ["multihead"], Effort(processes=7, most=30, budget_s=0.3), threads=2)
    assert added.planned_s == base.planned_s
    assert added.most_s > base.most_s


def test_the_time_limit_of_a_case_holds() -> None:
    """With --case-budget, added processes cost at most the time limit of each case."""
    plans = [make_plan(128), make_plan(256)]
    free, limited = (
        forecast(plans, ["multihead"], Effort(processes=100, budget_s=1.0, case_s=case_s), threads=2)
        for case_s in (None, 10.0)
    )
    assert free.planned_s - limited.planned_s > 100


def test_cases_that_cannot_run_take_no_time() -> None:
    """A case that this machine cannot run, and an implementation of another operator, add no time for calls."""
    effort = Effort(processes=7, budget_s=0.3)
    alone = forecast([make_plan(128)], ["multihead"], effort, threads=2)
    assert (
        forecast([make_plan(128), make_plan(9999, "x")], ["multihead"], effort, threads=2).planned_s == alone.planned_s
    )
