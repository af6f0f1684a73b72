"""Tests of the estimated time of cases."""

from pathlib import Path

import pytest

from attnbench.runner import Effort, Plan
from attnsweep.configuration import Kind, Machine
from attnsweep.estimates import CHECK_S, CHECK_START_S, Estimates, make_estimates, read_earlier_runs
from sweep_folders import case_of, write_run, write_sweep

PLANS = [Plan(case=case_of(length), checks=(), missing=None, flop=10**6 * length) for length in (4, 8)]
FIRST, SECOND, THIRD = (Machine(name=name, constraint=name) for name in ("first", "second", "third"))


def estimate(folder: Path, *, kind: Kind = "conform", machine: Machine = FIRST, here: str | None = None) -> Estimates:
    """Estimate two cases of two implementations; the folder has the earlier runs."""
    return make_estimates(
        PLANS, ["multihead"] * 2, machine=machine, kind=kind, effort=Effort(processes=7, budget_s=0.3), threads=2,
        earlier=read_earlier_runs([folder], kind), here=here,
    )  # fmt: skip


def test_without_earlier_runs_it_is_a_forecast(tmp_path: Path) -> None:
    """The origin says that the numbers are from another machine."""
    found = estimate(tmp_path)
    assert found.cases == {case_of(4): 2 * CHECK_S, case_of(8): 2 * CHECK_S}
    assert found.origin == "a forecast for two cores of a server CPU, since no earlier run of this kind was found"


def test_earlier_runs_correct_the_forecast(tmp_path: Path) -> None:
    """Two implementations took 46 s on 2 cases after the start: the forecast of 0.4 s is multiplied by 115."""
    write_run(tmp_path / "some-cpu" / "one.jsonl", [4, 8], took_s=int(CHECK_START_S) + 46)
    found = estimate(tmp_path)
    assert found.cases[case_of(4)] == pytest.approx(46 / 2)
    assert found.origin == f"a forecast times {46 / 0.4:.2g}, from 1 earlier run on other machines"


def test_runs_on_the_same_kind_of_machine_count_alone(tmp_path: Path) -> None:
    """A kind is known by what Slurm is asked for; where no run is of the kind, all runs count."""
    write_sweep(tmp_path, machines=(FIRST, SECOND))
    for machine, took_s in ((FIRST, 20), (SECOND, 40)):
        path = tmp_path / "tasks" / machine.name / "0001-1.jsonl"
        path.parent.mkdir(parents=True)
        write_run(path, [4, 8], took_s=int(CHECK_START_S) + took_s, hardware=f"cpu-{machine.name}")
    for machine, took_s in ((FIRST, 20), (SECOND, 40)):
        found = estimate(tmp_path, machine=machine)
        assert found.cases[case_of(4)] == pytest.approx(took_s / 2)
        assert found.origin.endswith("from 1 earlier run on this kind of machine")
    assert estimate(tmp_path, machine=THIRD).origin.endswith("from 2 earlier runs on other machines")
    here = estimate(tmp_path, machine=THIRD, here="cpu-second")
    assert here.cases[case_of(4)] == pytest.approx(40 / 2)
    assert here.origin.endswith("from 1 earlier run on this machine")


def test_an_implementation_counts_once_for_each_case(tmp_path: Path) -> None:
    """Two implementations with two results of a case are two, as where a result follows the checks and the timing."""
    path = tmp_path / "some-cpu" / "one.jsonl"
    write_run(path, [4, 8])
    run, *results, end = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join((run, *results, *results, end)))
    (found,) = read_earlier_runs([tmp_path], "conform")
    assert found.cases == {case_of(4): (2, 1000), case_of(8): (2, 1000)}


def test_runs_of_another_kind_do_not_count(tmp_path: Path) -> None:
    """The time of a suite says nothing about a profile, whose longer cases take longer."""
    write_run(tmp_path / "some-cpu" / "one.jsonl", [4, 8])
    found = estimate(tmp_path, kind="profile")
    assert "no earlier run of this kind" in found.origin
    assert 0 < found.cases[case_of(4)] < found.cases[case_of(8)]
    assert found.start_s > CHECK_START_S
