"""Tests of the way of observations: from a check in the candidate worker through a file to the oracle worker."""

from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.analysis.deviations import make_deviation
from attnbench.checks.observations import (
    Agree,
    Average,
    Equal,
    Exact,
    Holds,
    Match,
    Observation,
    RowSum,
    Scale,
    Slope,
    serialize,
)
from attnbench.interface import Policies
from attnbench.processes.candidate_requests import LoadImplementation, Observe, Observed
from attnbench.processes.oracle_requests import DrawInputs, Evaluate
from attnbench.records.types import Finding
from attnbench.records.value_facts import phrase
from attnbench.workers import candidate_worker, oracle_worker
from attnbench.workers.candidate_worker import CandidateWorker
from attnbench.workers.loaded_implementations import LoadedImplementations
from attnbench.workers.oracle_worker import OracleWorker

CASE = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed=0/float32/cpu/inference"
CHECK = "forward_parity"
OBSERVATIONS: list[Observation] = [
    Match(quantities={"output": torch.ones(2, requires_grad=True)}, keep=torch.tensor([True, False])),
    Match(quantities={}),
    Equal(value=torch.ones(1), expected=torch.zeros(1), quantity="output", how=phrase("second_call")),
    Agree(value=torch.ones(1), expected=torch.zeros(1), quantity="output", how=None, rows="masked"),
    Average(quantity="output", mean=torch.ones(1), std=torch.zeros(1), draws=4),
    Holds(holds=False, violation="own words", measured=1.0, allowed=0.5),
    Holds(holds=False, violation=phrase("seeds_alike"), deviation=make_deviation(Policies(), hidden_rows="nan")),
    Exact(quantities={"output": torch.ones(2)}),
    Exact(quantities={"output": torch.ones(2)}, mean_over=8),
    Scale(quantity="output", value=torch.ones(2)),
    RowSum(quantity="weights", off=0.5, allowed=0.25),
    Slope(derivative=1.0, slope=2.0, wider=3.0, step=0.5, weights={"output": 4.0}, quantity="grad.query"),
]


def test_the_oracle_worker_evaluates_what_a_check_observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An observation of every type arrives with its values, as they were at the time, and without autograd graphs."""
    written = torch.zeros(2)

    def observe(_: object) -> list[Observation]:
        return [*OBSERVATIONS, Exact(quantities={"output": written})]

    def observe_later(_: object) -> list[Observation]:
        written.fill_(9)
        return []

    checks = {CHECK: observe, "inputs_untouched": observe_later}
    evaluated: list[Observation] = []

    def evaluate(check: str, observations: list[Observation], *_: Any, **__: Any) -> Finding:
        evaluated.extend(observations)
        return Finding(check=check, status="passed")

    monkeypatch.setattr(candidate_worker, "load_check_function", checks.__getitem__)
    monkeypatch.setattr(oracle_worker, "evaluate", evaluate)
    loaded, oracle = LoadedImplementations(), OracleWorker(tmp_path)
    loaded.load(LoadImplementation(implementation="torch_mha"))
    inputs, file = oracle.draw_inputs(DrawInputs(case=CASE)), str(tmp_path / "observations")
    request = Observe(implementation="torch_mha", case=CASE, checks=list(checks), inputs=inputs, observation=file)
    assert CandidateWorker(loaded).observe(request) == Observed(outcomes=dict.fromkeys(checks))
    found = oracle.evaluate(
        Evaluate(implementation="sdpa", case=CASE, checks=list(checks), observations=[file], policies=Policies())
    )
    assert {check: finding.status for check, finding in found.items()} == dict.fromkeys(checks, "passed")
    expected = [*OBSERVATIONS, Exact(quantities={"output": torch.zeros(2)})]
    assert list(map(type, evaluated)) == list(map(type, expected))
    assert str(serialize(evaluated)) == str(serialize(expected))
    assert evaluated[0].quantities["output"].requires_grad is False  # type: ignore[union-attr]
