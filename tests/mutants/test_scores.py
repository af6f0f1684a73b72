"""Tests that the shipped mutation scores are reached: no score has fallen."""

import json
from importlib.resources import files
from pathlib import Path

import pytest

from attnbench.plugins.registry import OPERATORS, list_names, load_operator
from commands import run_command

pytestmark = pytest.mark.scores


@pytest.mark.parametrize("operator", list_names(OPERATORS))
def test_no_mutation_score_has_fallen(tmp_path: Path, operator: str) -> None:
    """On ``quick``, at least as many mutants are killed as the operator's file says, of as many."""
    package, _, name = load_operator(operator).mutation_scores.partition(":")
    shipped = json.loads(files(package).joinpath(name).read_text(encoding="utf-8"))["scores"]
    words = ("conform", "--mutants", "--operator", operator, "--suite", "quick", "--json", "scores.json")
    done = run_command(*words, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr  # 1: a mutant survives, as on most suites
    written = json.loads((tmp_path / "scores.json").read_text())
    ((key, found),) = written["scores"].items()
    assert found["killed"] >= shipped[key]["killed"]
    assert found["mutants"] == shipped[key]["mutants"]
