"""The case lists of every registered operator are those of their version."""

import json
from pathlib import Path

import pytest

from attnbench.cases import LEVELS, digest
from attnbench.plugins.registry import OPERATORS, list_names, load_operator

# By operator: the version of its lists, and for each level the number of cases and the hash of their ids.
EXPECTED = json.loads((Path(__file__).parent / "data" / "list_hashes.json").read_text())
# Lengths at which the cases of ``perf`` were hashed.
LENGTHS = [32, 128, 512]


def test_every_operator_has_its_hashes() -> None:
    """No operator is left out."""
    assert sorted(EXPECTED) == list_names(OPERATORS)


@pytest.mark.parametrize("name", EXPECTED)
def test_lists_change_with_their_version_only(name: str) -> None:
    """Whoever changes a list raises its version, and writes the new hashes into ``list_hashes.json``."""
    operator = load_operator(name)
    suites = {level: operator.suite(level) for level in LEVELS} | {"profile": operator.profile(LENGTHS)}
    found = {level: {"cases": len(cases), "hash": digest(case.id for case in cases)} for level, cases in suites.items()}
    assert {"version": operator.list_version, **found} == EXPECTED[name]
