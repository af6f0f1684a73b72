"""Cases of multi-head attention, by level."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from attnbench.cases import DTYPES, LEVELS, MODES, Case, Dtype, Level, Mode
from attnbench.operators.multihead.problem import ATTENTION_MASKS, LOGIT_STD, PADDING_MASKS, MultiheadProblem

__all__ = ["profile", "suite"]

# How a forward pass, and one with backward, are called.
PASSES: tuple[Mode, ...] = ("inference", "train")
# Pairwise distinct sizes (batch 2, heads 3, queries 5, keys 7, head_dim 8, embed_dim 24, kdim 10, vdim 14): a
# transposed or swapped axis then changes a shape or a value. The head width is no power of 4, so that the scale
# 1/√8 is rounded in every dtype.
CROSS = MultiheadProblem(batch=2, queries=5, keys=7, embed_dim=24, num_heads=3, bias=True, batch_first=True)
# The reference's fast path takes an even number of heads and one tensor as query, key and value.
SELF = MultiheadProblem(
    batch=3, queries=5, keys=5, embed_dim=24, num_heads=2, bias=True, batch_first=True, self_attention=True
)
# Three sentences of the shipped text, padded; the true sizes of the encoder (width 384, 12 heads).
SENTENCES = MultiheadProblem(
    batch=3, queries=14, keys=14, embed_dim=384, num_heads=12, bias=True, batch_first=True, self_attention=True,
    mask="pad", regime="minilm0",
)  # fmt: skip


def suite(level: Level) -> Sequence[Case]:
    """Cases of a level; each level holds those of the one before it, and no case twice."""
    steps = {"quick": _quick, "core": _core, "full": _full, "slow": _slow}
    cases: dict[str, Case] = {}
    for name in LEVELS[: LEVELS.index(level) + 1]:
        cases |= {case.id: case for case in steps[name]()}
    return list(cases.values())


def profile(lengths: Sequence[int]) -> Sequence[Case]:
    """One case per length and pass: self-attention without weights, forward in inference and with backward in train."""
    return [
        _case(replace(SELF, batch=1, queries=n, keys=n, embed_dim=256, num_heads=4), mode=mode)
        for n, mode in product(lengths, PASSES)
    ]


def _case(problem: MultiheadProblem, *, dtype: Dtype = "float32", mode: Mode = "eval") -> Case:
    return Case(operator="multihead", problem=problem, dtype=dtype, mode=mode)


def _quick() -> Iterator[Case]:
    weights = replace(CROSS, need_weights=True)
    for dtype in DTYPES:
        yield _case(weights, dtype=dtype)
    yield _case(CROSS, dtype="bfloat16", mode="inference")
    yield _case(CROSS, dtype="float16", mode="inference")
    yield _case(replace(CROSS, mask="float2d+pad"), dtype="float16", mode="inference")
    yield _case(replace(weights, average_attn_weights=True), mode="inference")
    yield _case(replace(CROSS, kdim=10, vdim=14, mask="bool3d+pad"))
    yield _case(replace(weights, add_bias_kv=True, add_zero_attn=True, mask="float3d+padfloat"))
    yield _case(replace(CROSS, bias=False, batch_first=False, mask="bool2d"))
    yield _case(replace(weights, batch=None, mask="float2d+padfloat"))
    yield _case(replace(CROSS, mask="causal", is_causal=True), mode="train")
    for mode in PASSES:
        yield _case(replace(SELF, mask="pad"), mode=mode)
    yield _case(replace(weights, regime="peaked", mask="bool2d"), mode="train")
    yield _case(replace(weights, dropout=0.25, mask="bool2d+pad"), mode="train")
    yield _case(replace(CROSS, dropout=0.25), mode="eval")
    yield _case(replace(CROSS, mask="empty2d"))
    yield _case(replace(SENTENCES, regime="minilm0"), mode="inference")
    yield _case(replace(SENTENCES, regime="minilm5"))
    yield _case(replace(SENTENCES, regime="minilm2", need_weights=True), mode="inference")


def _core() -> Iterator[Case]:
    weights = replace(CROSS, need_weights=True)
    for mask, dtype in product(_masks(), DTYPES):
        yield _case(replace(weights, mask=mask), dtype=dtype)
        yield _case(replace(CROSS, mask=mask), dtype=dtype, mode="train")
    for regime, dtype in product(LOGIT_STD, DTYPES):
        yield _case(replace(weights, regime=regime, mask="bool2d"), dtype=dtype)
    for bias_kv, zero, bias, first in product((False, True), repeat=4):
        problem = replace(weights, add_bias_kv=bias_kv, add_zero_attn=zero, bias=bias, batch_first=first)
        yield _case(problem)
        yield _case(replace(problem, need_weights=False, kdim=10, vdim=14, mask="float3d+padfloat"))
        yield _case(replace(problem, batch=None, mask="bool3d+pad", average_attn_weights=True))
    for mask, mode in product(("none", "pad", "causal", "bool2d+pad"), MODES):
        yield _case(replace(SELF, mask=mask), mode=mode)
        yield _case(replace(SELF, mask=mask, need_weights=True, average_attn_weights=True), mode=mode)
    for queries, keys in ((1, 1), (1, 7), (7, 1), (7, 3), (17, 33), (64, 65)):
        yield _case(replace(weights, queries=queries, keys=keys))
        yield _case(replace(CROSS, queries=queries, keys=keys, mask="causal", is_causal=True))
    for heads, embed in ((1, 8), (4, 4), (2, 80), (5, 15)):
        yield _case(replace(weights, num_heads=heads, embed_dim=embed, mask="bool2d"))
    for dropout, kind in product((0.1, 0.5), ("none", "bool3d", "pad")):
        yield _case(replace(weights, dropout=dropout, mask=kind), mode="train")
        yield _case(replace(CROSS, dropout=dropout, mask=kind), mode="eval")
    for layer, mode in product(range(6), PASSES):
        yield _case(replace(SENTENCES, regime=f"minilm{layer}"), mode=mode)


def _full() -> Iterator[Case]:
    for mask, regime, dtype, mode in product(_masks(), LOGIT_STD, DTYPES, PASSES):
        yield _case(replace(CROSS, mask=mask, regime=regime, need_weights=True), dtype=dtype, mode=mode)
    for head_dim, dtype in product((1, 2, 3, 5, 16, 24, 40, 64, 72, 128), DTYPES):
        yield _case(replace(CROSS, embed_dim=3 * head_dim, mask="bool2d"), dtype=dtype)
    for keys, mask in product((15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129), ("none", "bool2d", "pad")):
        yield _case(replace(CROSS, queries=keys - 2, keys=keys, mask=mask))
    for layer, dtype in product(range(6), DTYPES):
        yield _case(replace(SENTENCES, regime=f"minilm{layer}", need_weights=True), dtype=dtype)


def _slow() -> Iterator[Case]:
    for keys, dtype in product((512, 1024), DTYPES):
        yield _case(replace(CROSS, queries=keys // 2, keys=keys, mask="pad"), dtype=dtype)


def _masks() -> Iterator[str]:
    """No mask, each mask alone, and each pair of an attention and a padding mask."""
    yield "none"
    yield from ATTENTION_MASKS
    yield from PADDING_MASKS
    yield from (f"{attention}+{padding}" for attention, padding in product(ATTENTION_MASKS, PADDING_MASKS))
