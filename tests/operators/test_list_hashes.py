"""Tests that the case lists of every registered operator have the hashes that are stored for their version."""

import json
from importlib.resources import files
from pathlib import Path

import pytest

from attnbench.analysis.coverage import VERDICT_SUITES
from attnbench.cases import LEVELS, digest
from attnbench.plugins.registry import OPERATORS, list_names, load_operator

# For each operator: the version of its case lists, and for each suite and the pool the number of cases and
# the hash of their ids.
EXPECTED = json.loads((Path(__file__).parents[1] / "data" / "list_hashes.json").read_text())
# Lengths of the profile cases that were hashed.
LENGTHS = [32, 128, 512]


def test_every_operator_has_hashes() -> None:
    """``list_hashes.json`` has an entry for every registered operator, and no other entry."""
    assert sorted(EXPECTED) == list_names(OPERATORS)


@pytest.mark.parametrize("name", EXPECTED)
def test_lists_change_only_with_their_version(name: str) -> None:
    """A changed case list needs a new ``list_version`` of its operator and new hashes in ``list_hashes.json``."""
    operator = load_operator(name)
    suites = {level: operator.suite(level) for level in LEVELS} | {"profile": operator.profile(LENGTHS)}
    suites["pool"] = operator.pool("full")
    found = {level: {"cases": len(cases), "hash": digest(case.id for case in cases)} for level, cases in suites.items()}
    assert {"version": operator.list_version, **found} == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_list_that_gives_a_verdict_has_a_mutation_score(name: str) -> None:
    """The shipped scores are those of the current lists of quick, core and full."""
    package, _, file = load_operator(name).mutation_scores.partition(":")
    scores = json.loads(files(package).joinpath(file).read_text(encoding="utf-8"))["scores"]
    for level in VERDICT_SUITES:
        stored = scores[EXPECTED[name][level]["hash"]]
        assert 0 < stored["killed"] <= stored["mutants"]
        assert stored["level"] == level
        assert stored["list_versions"] == {name: EXPECTED[name]["version"]}
