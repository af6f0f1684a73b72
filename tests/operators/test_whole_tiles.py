"""Tests of the cases of whole tiles."""

from itertools import product

from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.operators.multihead.whole_tiles import WHOLE_TILES
from attnbench.plugins.registry import load_operator


def test_core_has_every_mask_at_whole_tiles_and_in_a_decoding_step() -> None:
    """With wide heads, and neither extra keys nor weights, for which a kernel would take another branch."""
    seen = set()
    for case in load_operator("multihead").suite("core"):
        problem: MultiheadProblem = case.problem
        plain = not (problem.need_weights or problem.add_bias_kv or problem.add_zero_attn)
        if plain and problem.head_dim in (64, 128):
            attention = "hint" if problem.is_causal else problem.attention_mask or ""
            seen.add(((problem.queries, problem.keys), (attention, problem.padding_mask or "")))
    assert seen >= set(product(WHOLE_TILES["lengths"], WHOLE_TILES["masks"]))
    assert all(keys % 64 == 0 and (queries == 1 or queries % 64 == 0) for queries, keys in WHOLE_TILES["lengths"])
