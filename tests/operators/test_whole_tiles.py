"""Tests of the cases of whole tiles."""

from importlib import import_module
from itertools import product

import pytest

from attnbench.operators.covering_array import build_covering_array
from attnbench.operators.whole_tiles import TILED
from attnbench.plugins.registry import load_operator


def test_lengths_are_whole_tiles_or_a_decoding_step() -> None:
    """Kernels take tiles of 64."""
    assert all(keys % 64 == 0 and (queries == 1 or queries % 64 == 0) for queries, keys in TILED)


@pytest.mark.parametrize("operator", ["multihead", "attention_core"])
def test_core_has_every_mask_at_every_length(operator: str) -> None:
    """Each row of the array is a case of core, and the heads are wide."""
    own = import_module(f"attnbench.operators.{operator}.whole_tiles")
    convert = import_module(f"attnbench.operators.{operator}.generate_cases").row_to_case
    rows = build_covering_array(own.WHOLE_TILES, lambda _: True, 2)
    assert {(row["lengths"], row["masks"]) for row in rows} == set(product(TILED, own.WHOLE_TILES["masks"]))
    cases = {convert(own.fill_row(row)) for row in rows}
    assert cases <= set(load_operator(operator).suite("core"))
    assert {case.problem.head_dim for case in cases} == {64, 128}
