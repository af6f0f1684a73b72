"""Tests of the plants, which are copies of the reference with extra work."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.oracle.inputs import load_inputs
from attnbench.plugins.registry import load_operator, load_problem_types
from attnbench.processes.oracle_requests import DrawInputs
from attnbench.workers.oracle_worker import OracleWorker
from research.detection import plants
from research.tests.detection.samples import CASE


def make_candidate(implementation: Any, folder: Path) -> Candidate:
    """Make the candidate of an implementation on ``CASE``."""
    case = Case.parse(CASE, load_problem_types())
    inputs = load_inputs(OracleWorker(folder).draw_inputs(DrawInputs(case=CASE)), case.device)
    return Candidate(implementation, load_operator("multihead"), case, inputs)


def test_a_plant_returns_the_reference_output_after_extra_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variable sets the number of rows of a plant's matrix product.

    The plant without extra work is called like the reference: its call is the reference's module.
    """
    monkeypatch.setenv(plants.ROWS, json.dumps({"2": 3}))
    plain, planted, byte = (make_candidate(one, tmp_path) for one in (plants.PLUS_0, plants.PLUS_2, plants.PLUS_BYTE))
    assert isinstance(plain.call, torch.nn.MultiheadAttention)
    rows: list[int] = []
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, out: rows.append(len(a)) or product(a, b, out=out))
    for other in (planted, byte):
        assert all(torch.equal(value, other.run()[name]) for name, value in plain.run().items())
    assert rows == [3]


def test_a_plant_without_a_number_of_rows_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the environment variable and the command that measures the numbers of rows."""
    monkeypatch.delenv(plants.ROWS, raising=False)
    case = Case.parse(CASE, load_problem_types())
    assert plants.PLUS_2.unsupported(case) == (
        "ATTNBENCH_PLANTED_ROWS sets no number of rows for plus_2: run python -m research.detection plants"
    )
    assert plants.PLUS_0.unsupported(case) is None
