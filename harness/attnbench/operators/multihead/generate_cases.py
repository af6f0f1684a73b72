"""Generate the case lists: ``python -m attnbench.operators.multihead.generate_cases`` writes ``lists/<level>.txt``.

The list of a level contains the cases that the level adds to the previous level. ``core`` covers every pair of argument
values, and ``full`` covers every triple. A second covering array combines coincidences of sizes with the other
arguments, and a third one whole tiles. Further cases are chosen by hand for the reasons in the comments.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from attnbench.cases import CALL_MODES, DTYPES, NARROW_DTYPES, Case, Dtype, Level, Mode
from attnbench.devices.cuda import CUDA
from attnbench.interface import Covering
from attnbench.operators.covering_array import build_covering_array, build_restricted_arrays
from attnbench.operators.multihead.coincidences import COINCIDENT, TRIPLES, is_coincident, resolve_row
from attnbench.operators.multihead.problem import (
    ATTENTION_MASKS,
    FINITE_MASKS,
    LOGIT_STD,
    PADDING_MASKS,
    SIDE_PADDING,
    MultiheadProblem,
)
from attnbench.operators.multihead.restrictions import RESTRICTIONS
from attnbench.operators.multihead.suites import CROSS, LISTS, PASSES, SELF, SENTENCES
from attnbench.operators.multihead.whole_tiles import WHOLE_TILES, fill_row

__all__ = ["COVERING", "FACTORS", "case_to_row", "is_allowed", "row_to_case", "write_lists"]

NARROW_AND_WIDE: tuple[Dtype, ...] = ("float32", "bfloat16")
OTHER_MODES: tuple[Mode, ...] = ("inference_mode", "sampling", "frozen", "tuning")
# The values of each factor. The factors are the arguments of the reference, and everything else that can vary in a
# case. The covering arrays combine these values. Compiled modes are excluded, because compiling a graph takes seconds.
FACTORS: Mapping[str, tuple[Any, ...]] = {
    "dtype": DTYPES,
    "mode": tuple(mode for mode, call_mode in CALL_MODES.items() if call_mode.compiler is None),
    # Pairs of batch size and batch_first; the batch size None means unbatched.
    "layout": ((2, True), (4, True), (1, True), (3, False), (1, False), (None, False)),
    "sharing": ("", "self_attention", "key_is_value", "query_is_key"),
    # Pairs of kdim and vdim; None means embed_dim.
    "widths": ((None, None), (10, None), (None, 14), (10, 14), (10, 10)),
    "attention": ("", "hint", *(form for form in ATTENTION_MASKS if form not in FINITE_MASKS)),
    "padding": ("", *(form for form in PADDING_MASKS if form not in SIDE_PADDING)),
    "bias": (True, False),
    "add_bias_kv": (False, True),
    "add_zero_attn": (False, True),
    "weights": ("", "heads", "average"),
    "dropout": (0.0, 0.25),
    # Pairs of the number of heads and the width of a head. The numbers of heads are odd and even. Some widths are
    # powers of 2.
    "heads": ((3, 8), (2, 8), (1, 8), (5, 3), (2, 16), (4, 7)),
    # Pairs of the numbers of queries and keys. Where query and key are one tensor, only equal numbers are allowed: 1
    # token, 8 tokens, 33 tokens (one more than a tile of 32), and 72 tokens (more than a tile of 64).
    "lengths": ((5, 7), (8, 8), (1, 9), (13, 4), (17, 33), (66, 72), (1, 1), (33, 33), (72, 72)),
    "regime": tuple(LOGIT_STD),
}
ALIASES_WITH_WIDTHS = {
    "self_attention": ((None, None),),
    "key_is_value": ((None, None), (10, 10)),
    "query_is_key": ((None, None), (None, 14)),
}
# Values of ``sharing`` for which query and key are one tensor.
SHARES_QUERIES = ("self_attention", "query_is_key")


def is_allowed(row: Mapping[str, Any]) -> bool:
    """Return whether a row, complete or partial, describes a valid case whose outputs are not random."""
    autocast = "mode" in row and CALL_MODES[row["mode"]].autocast
    if autocast and row.get("dtype", "bfloat16") not in NARROW_DTYPES:
        return False
    widths = ALIASES_WITH_WIDTHS.get(row.get("sharing", ""))
    if widths and row.get("widths", (None, None)) not in widths:
        return False
    queries, keys = row.get("lengths", (1, 1))
    if row.get("sharing") in SHARES_QUERIES and queries != keys:
        return False
    return not (row.get("dropout") and "mode" in row and CALL_MODES[row["mode"]].training)


def row_to_case(row: Mapping[str, Any]) -> Case:
    """Return the case that a row of the covering array describes."""
    batch, batch_first = row["layout"]
    (heads, head_dim), (queries, keys), (kdim, vdim) = row["heads"], row["lengths"], row["widths"]
    mask = "+".join(part for part in (row["attention"].replace("hint", "causal"), row["padding"]) if part)
    problem = MultiheadProblem(
        batch=batch, queries=queries, keys=keys, embed_dim=heads * head_dim, num_heads=heads, kdim=kdim, vdim=vdim,
        bias=row["bias"], add_bias_kv=row["add_bias_kv"], add_zero_attn=row["add_zero_attn"], batch_first=batch_first,
        need_weights=bool(row["weights"]), average_attn_weights=row["weights"] == "average",
        is_causal=row["attention"] == "hint", dropout=row["dropout"], mask=mask or "none", regime=row["regime"],
        **({row["sharing"]: True} if row["sharing"] else {}),
    )  # fmt: skip
    return _make_case(problem, dtype=row["dtype"], mode=row["mode"])


def case_to_row(case: Case) -> dict[str, Any]:
    """Return the row of the covering array that describes a case: the inverse of ``row_to_case``."""
    problem: MultiheadProblem = case.problem
    aliases = ("self_attention", "key_is_value", "query_is_key")
    return {
        "dtype": case.dtype,
        "mode": case.mode,
        "layout": (problem.batch, problem.batch_first),
        "sharing": next((alias for alias in aliases if getattr(problem, alias)), ""),
        "widths": (problem.kdim, problem.vdim),
        "attention": "hint" if problem.is_causal else problem.attention_mask or "",
        "padding": problem.padding_mask or "",
        "bias": problem.bias,
        "add_bias_kv": problem.add_bias_kv,
        "add_zero_attn": problem.add_zero_attn,
        "weights": ("average" if problem.average_attn_weights else "heads") if problem.need_weights else "",
        "dropout": problem.dropout,
        "heads": (problem.num_heads, problem.head_dim),
        "lengths": (problem.queries, problem.keys),
        "regime": problem.regime,
    }


COVERING = Covering(factors=FACTORS, is_allowed=is_allowed, row_to_case=row_to_case, case_to_row=case_to_row)


def write_lists() -> None:
    """Write the case list of every level, and the pool."""
    generated: dict[Level, Iterable[Case]] = {
        "quick": _generate_quick(),
        "core": _generate_core(),
        "full": _generate_full(),
        "slow": _generate_slow(),
        "gpu": _generate_gpu(),
        "huge": _generate_huge(),
    }
    LISTS.write(generated, map(row_to_case, build_restricted_arrays(FACTORS, is_allowed, RESTRICTIONS)))


def _make_case(problem: MultiheadProblem, *, dtype: Dtype = "float32", mode: Mode = "eval") -> Case:
    return Case(operator="multihead", problem=problem, dtype=dtype, mode=mode)


# A problem of the regime ``identity``, in which the projections have no rounding errors. The head_dim 7 is not a power
# of 4, so the scale 1/√7 is rounded in every dtype.
CORE = replace(CROSS, embed_dim=21, bias=False, regime="identity")
# The sizes are so large that an average over all elements reveals a systematic error smaller than the rounding of one
# element.
PROBE = replace(CORE, batch=4, queries=33, keys=47)


def _generate_quick() -> Iterator[Case]:
    weights = replace(CROSS, need_weights=True)
    for dtype in DTYPES:
        yield _make_case(weights, dtype=dtype)
    yield _make_case(CROSS, dtype="bfloat16", mode="inference")
    yield _make_case(CROSS, dtype="float16", mode="inference")
    yield _make_case(replace(CROSS, mask="float2d+pad"), dtype="float16", mode="inference")
    yield _make_case(replace(weights, average_attn_weights=True), mode="inference")
    yield _make_case(replace(CROSS, kdim=10, vdim=14, mask="bool3d+pad"))
    yield _make_case(replace(weights, add_bias_kv=True, add_zero_attn=True, mask="float3d+padfloat"))
    yield _make_case(replace(CROSS, bias=False, batch_first=False, mask="bool2d"))
    yield _make_case(replace(weights, batch=None, mask="float2d+padfloat"))
    yield _make_case(replace(CROSS, mask="causal", is_causal=True), mode="train")
    yield from (_make_case(weights, mode=mode) for mode in OTHER_MODES)
    yield _make_case(weights, dtype="bfloat16", mode="autocast")
    yield _make_case(replace(SELF, mask="pad"), dtype="bfloat16", mode="autocast_inference")
    for mode in PASSES:
        yield _make_case(replace(SELF, mask="pad"), mode=mode)
    yield _make_case(replace(weights, regime="peaked", mask="bool2d"), mode="train")
    yield _make_case(replace(weights, dropout=0.25, mask="bool2d+pad"), mode="train")
    yield _make_case(replace(CROSS, dropout=0.25), mode="eval")
    yield _make_case(replace(CROSS, mask="empty2d"))
    yield _make_case(replace(SENTENCES, regime="minilm0"), mode="inference")
    yield _make_case(replace(SENTENCES, regime="minilm5"))
    yield _make_case(replace(SENTENCES, regime="minilm2", need_weights=True), mode="inference")
    yield _make_case(replace(CORE, regime="uniform", queries=3, keys=9, mask="pad"), dtype="bfloat16", mode="inference")
    yield _make_case(replace(CORE, regime="selection", mask="bool3d"), dtype="float16")
    yield _make_case(PROBE, dtype="bfloat16")


def _generate_core() -> Iterator[Case]:
    yield from (row_to_case(row) for row in build_covering_array(FACTORS, is_allowed, 2))
    yield from _generate_coincident(COINCIDENT, 2)
    yield from _generate_whole_tiles(2)
    yield from _generate_exact(((3, 8), (5, 17), (4, 65)))
    yield from (_make_case(PROBE, dtype=dtype) for dtype in DTYPES)
    yield from _generate_degenerate()
    weights = replace(CROSS, need_weights=True)
    # Kernels process keys in blocks (tiles). These numbers of keys fill the last tile exactly or only partly.
    for queries, keys in ((7, 1), (31, 32), (63, 64), (129, 130)):
        yield _make_case(replace(CROSS, queries=queries, keys=keys, mask="bool2d"))
    for batch, queries, keys in ((2, 16, 257), (33, 8, 9)):
        yield _make_case(replace(CROSS, batch=batch, queries=queries, keys=keys, mask="pad"), mode="train")
    yield from _generate_long()
    # More sequences than 65535, the largest extent of the second and third axis of a CUDA grid.
    yield _make_case(replace(CROSS, batch=65_536, queries=1, keys=2, embed_dim=1, num_heads=1))
    # Heads of width 1 to 128, also with widths that are not powers of 2.
    for heads, head_dim in ((1, 1), (3, 64), (2, 128), (2, 40), (16, 4), (2, 11)):
        yield _make_case(replace(weights, num_heads=heads, embed_dim=heads * head_dim, mask="bool2d"))
    yield from _generate_wide()
    yield from _generate_branches()
    yield from _generate_finite()
    yield from _generate_fused()
    yield from _generate_overflow()
    # As many keys as heads, and as features of a head: compilers have confused these numbers (pytorch/pytorch#195320).
    yield _make_case(replace(CROSS, queries=4, keys=4, num_heads=4, embed_dim=16, mask="bool2d"), mode="aot")
    yield _make_case(replace(SELF, mask="causal", is_causal=True, need_weights=True), mode="aot")
    yield _make_case(replace(CROSS, mask="float2d+padfloat"), mode="aot")
    yield _make_case(replace(CROSS, mask="float3d+pad"), mode="exported")
    yield from _generate_modes()
    yield from _generate_dropout()
    for layer, mode in product(range(6), PASSES):
        yield _make_case(replace(SENTENCES, regime=f"minilm{layer}"), mode=mode)
    # With the extra key of add_bias_kv or add_zero_attn, the hint is_causal no longer describes the whole mask.
    hinted = replace(CROSS, mask="causal", is_causal=True)
    yield _make_case(replace(hinted, add_bias_kv=True), mode="train")
    yield _make_case(replace(hinted, add_zero_attn=True), mode="train")
    # A single query with the hint, as in decoding (huggingface/transformers#37807).
    for mode in PASSES:
        yield _make_case(replace(hinted, queries=1, keys=9), mode=mode)
    yield _make_case(replace(CROSS, batch=5, mask="bool3d+padfloat", need_weights=True), mode="inference")


def _generate_coincident(factors: Mapping[str, Sequence[Any]], strength: int) -> Iterator[Case]:
    """Generate the cases of the second covering array."""
    yield from (row_to_case(resolve_row(row)) for row in build_covering_array(factors, is_coincident, strength))


def _generate_whole_tiles(strength: int) -> Iterator[Case]:
    """Generate the cases of the third covering array."""
    rows = build_covering_array(WHOLE_TILES, lambda _: True, strength)
    yield from (row_to_case(fill_row(row)) for row in rows)


def _generate_exact(lengths: Iterable[tuple[int, int]]) -> Iterator[Case]:
    for (queries, keys), dtype in product(lengths, DTYPES):
        core = replace(CORE, queries=queries, keys=keys, batch=3)
        index = keys + DTYPES.index(dtype)
        # Padding at the end, at the start, and at random positions.
        pad = ("pad", "padleft", "padholes")[index % 3]
        for regime, mask in (("uniform", "bool3d"), ("uniform", pad), ("selection", "bool3d"), ("zeroleak", pad)):
            mode: Mode = "inference" if index % 2 else "eval"
            yield _make_case(replace(core, regime=regime, mask=mask), dtype=dtype, mode=mode)
    for keys, dtype in product((8, 64), DTYPES):
        yield _make_case(replace(CORE, regime="uniform", keys=keys), dtype=dtype)
    # More equal logits than a tile of 64 keys, and keys beyond two tiles for the check rising_logits.
    yield _make_case(replace(CORE, regime="uniform", keys=128), mode="inference")
    yield _make_case(replace(CORE, keys=130), mode="inference")
    yield _make_case(replace(CORE, regime="zeroleak", mask="padfloat"))


def _generate_degenerate() -> Iterator[Case]:
    """Generate cases without keys, queries or sequences, and one case in which every size is 1."""
    for weights, mask in product((False, True), ("none", "pad", "bool2d")):
        some = replace(CROSS, need_weights=weights, mask=mask)
        yield _make_case(replace(some, batch=0))
        yield _make_case(replace(some, queries=0))
        yield _make_case(replace(some, keys=0))
    self_attention = replace(SELF, need_weights=True)
    yield _make_case(replace(self_attention, batch=0), mode="inference")
    yield _make_case(replace(self_attention, queries=0, keys=0), mode="inference")
    yield _make_case(replace(CROSS, keys=0, add_zero_attn=True, add_bias_kv=True))
    averaged: dict[str, Any] = {"need_weights": True, "average_attn_weights": True}
    empty: tuple[dict[str, Any], ...] = ({"batch": 0}, {"queries": 0}, {"keys": 0})
    for nothing in empty:
        some = replace(CROSS, **nothing)
        yield _make_case(some, dtype="bfloat16", mode="train")
        yield _make_case(replace(some, mask="padfloat"), dtype="float16", mode="inference")
        yield _make_case(replace(some, add_zero_attn=True, mask="float2d", **averaged), mode="train")
    yield _make_case(replace(self_attention, batch=0, average_attn_weights=True, mask="pad"), mode="inference")
    yield _make_case(replace(CROSS, batch=None, keys=0), mode="train")
    # A mask that hides the only key from a sequence: some kernels return the value of a single key at once.
    for queries in (5, 1):
        yield _make_case(replace(CROSS, queries=queries, keys=1, mask="padempty", regime="peaked"), mode="train")
    yield _make_case(replace(CROSS, batch=1, queries=1, keys=1, num_heads=1, embed_dim=1, need_weights=True))


def _generate_long() -> Iterator[Case]:
    """Generate cases with masks and more keys than a tile has, up to 1040.

    In tiles of up to 1024 keys, the last tile is partial, and a window or padding at the start hides whole first tiles.
    A window of four keys leaves the first tile only if a few keys follow that tile.
    """
    one = replace(CROSS, batch=1)
    forms: tuple[tuple[int, int, str, Dtype, Mode], ...] = (
        (5, 300, "bool3d+padholes", "float32", "train"),
        (60, 300, "window2d", "float16", "eval"),
        (257, 257, "window2d", "float32", "inference"),
        (5, 517, "window2d+pad", "float32", "eval"),
        (5, 513, "float3d+padleft", "bfloat16", "inference"),
        (5, 1030, "window2d", "float32", "train"),
        (5, 1025, "bool2d+padfloat", "float16", "inference"),
        (5, 1025, "float2d+padleft", "float32", "inference"),
        (2, 1040, "padholes", "bfloat16", "eval"),
    )
    for queries, keys, mask, dtype, mode in forms:
        problem = replace(one if queries == keys else CROSS, queries=queries, keys=keys, mask=mask)
        yield _make_case(replace(problem, need_weights=mask.startswith("bool3d")), dtype=dtype, mode=mode)
    yield _make_case(replace(SELF, batch=1, queries=300, keys=300, mask="causal", is_causal=True), mode="train")


def _generate_wide() -> Iterator[Case]:
    """Generate cases with wide heads, more than one tile of queries and keys, and a backward pass.

    Some widths are multiples of 8 or 16 that are not multiples of 32: kernels pad these widths.
    """
    small, square, large = (17, 33), (33, 33), (66, 72)
    forms: tuple[tuple[int, Dtype, tuple[int, int], str], ...] = (
        (64, "float16", small, "bool2d"), (64, "bfloat16", large, "pad"), (72, "float16", small, "none"),
        (72, "float32", large, "hint"), (80, "bfloat16", small, "pad"), (80, "float64", small, "none"),
        (104, "float16", small, "bool2d"), (104, "float32", large, "pad"), (128, "float16", small, "none"),
        (128, "bfloat16", square, "hint"), (256, "bfloat16", square, "none"), (256, "float32", small, "none"),
    )  # fmt: skip
    for head_dim, dtype, (queries, keys), mask in forms:
        # Fewer checks run on peaked logits than on plain logits. In bfloat16 the logits are plain nevertheless, because
        # the error budget of peaked logits would be as large as some gradients. The time grows with the square of the
        # width of all heads, and with the number of pairs.
        heads, batch = 1 if head_dim == 256 and queries == keys else 2, 1 if head_dim > 64 and queries > 17 else 2
        problem = replace(
            CROSS, batch=batch, queries=queries, keys=keys, num_heads=heads, embed_dim=heads * head_dim,
            regime="plain" if dtype == "bfloat16" else "peaked", mask=mask.replace("hint", "causal"),
            is_causal=mask == "hint", self_attention=queries == keys,
        )  # fmt: skip
        yield _make_case(problem, dtype=dtype, mode="train")
    # This case has one head and few keys, because products in float16 are slow on a CPU.
    yield _make_case(replace(CROSS, num_heads=1, embed_dim=256, regime="peaked"), dtype="float16", mode="train")


def _generate_branches() -> Iterator[Case]:
    """Generate cases with several things at which kernels branch: length, the hint, padding, the batch, the dtype.

    The logits of most are peaked, so fewer checks run. In bfloat16 the error budget of peaked logits would be large.
    """
    hint: dict[str, Any] = {"mask": "causal", "is_causal": True}
    one = replace(CROSS, batch=1, num_heads=2, embed_dim=16, regime="peaked")
    # At least as many keys as two tiles of 64, with one sequence.
    for keys, mask in ((128, {"mask": "pad"}), (192, {"mask": "padfloat"}), (192, hint), (520, {"mask": "none"})):
        yield _make_case(replace(one, keys=keys, **mask), mode="train")
    # As many queries as keys or more, and whole tiles of 64 keys.
    yield _make_case(replace(one, queries=192, keys=128, **hint), mode="train")
    yield _make_case(replace(one, queries=64, keys=64, regime="plain", **hint), dtype="bfloat16", mode="train")
    # An extra key behind a tile of 64 hidden keys.
    extras: tuple[dict[str, Any], ...] = ({"add_zero_attn": True}, {"add_bias_kv": True})
    for extra, mask in product(extras, (hint, {"mask": "padempty"})):
        yield _make_case(replace(one, batch=2, keys=128, **mask, **extra), mode="train")
    yield _make_case(replace(one, keys=64, mask="pad", add_zero_attn=True, add_bias_kv=True), mode="train")
    half: tuple[Dtype, ...] = ("bfloat16", "float16")
    for extra, dtype in zip(extras, half, strict=True):
        yield _make_case(replace(CROSS, **hint, **extra), dtype=dtype, mode="inference")
    # More queries, or more keys, than 1024.
    for queries, keys in ((1030, 5), (5, 1030)):
        yield _make_case(replace(one, queries=queries, keys=keys, **hint), mode="train")
    # One query in half precision, and heads of a width for which few kernels exist; and odd numbers of heads.
    served: tuple[tuple[int, Dtype], ...] = ((80, "bfloat16"), (112, "float16"), (72, "float16"))
    for head_dim, dtype in served:
        yield _make_case(replace(CROSS, queries=1, num_heads=1, embed_dim=head_dim), dtype=dtype, mode="inference")
    for heads, dtype in zip((3, 7), half, strict=True):
        yield _make_case(replace(SELF, num_heads=heads, embed_dim=21), dtype=dtype, mode="inference")
    unbiased = replace(CROSS, bias=False, need_weights=True, regime="peaked")
    yield _make_case(replace(unbiased, kdim=10))
    yield _make_case(replace(unbiased, vdim=14))
    yield _make_case(replace(unbiased, kdim=10, vdim=14, average_attn_weights=True), mode="inference")


def _generate_finite() -> Iterator[Case]:
    """Generate cases whose masks a shortcut may take for masks that hide nothing.

    A float mask has no minus infinity, or padding is only in some sequences or at the end of all of them.
    """
    cross, self_attention = replace(CROSS, regime="peaked"), replace(SELF, batch=7, regime="peaked")
    for form in FINITE_MASKS:
        yield _make_case(replace(CROSS, mask=form), mode="inference")
        yield _make_case(replace(SELF, mask=form), mode="inference")
        yield _make_case(replace(cross, mask=f"{form}+padall"), mode="train")
    for form in ("float2d", "float3d"):
        yield _make_case(replace(cross, mask=f"{form}+padall"), mode="train")
    for form, padding in (("bool2d", "padall"), ("causal", "padall"), ("bool3d", "padlast")):
        yield _make_case(replace(CROSS, mask=f"{form}+{padding}"), mode="inference")
    yield _make_case(replace(cross, batch=4, mask="padall"), mode="train")
    yield _make_case(replace(self_attention, mask="padall"), mode="inference")
    yield _make_case(replace(CROSS, batch=4, mask="padlast"), mode="inference")
    yield _make_case(replace(self_attention, mask="padlast"), mode="train")
    yield _make_case(replace(cross, mask="padall"), dtype="float16", mode="train")
    # Padding behind as many keys as there are queries.
    for keys in (9, 33):
        yield _make_case(replace(CROSS, batch=1, keys=keys, mask="pad"), mode="inference")


def _generate_fused() -> Iterator[Case]:
    """Generate cases for the reference's fused inference path, with every form of attn_mask.

    The reference takes this path for self-attention with an even number of heads, in eval mode without gradients. In
    some versions it read float masks as boolean (pytorch/pytorch#107084), and lost one of two masks
    (pytorch/pytorch#97605).
    """
    forms = [form for form in ("hint", *ATTENTION_MASKS) if form not in FINITE_MASKS]
    # Each form occurs without padding and with ``pad``, each third form with ``padfloat``, and one with ``padleft``.
    others = dict.fromkeys(forms[::3], "padfloat") | {"bool2d": "padleft"}
    pairs = [(form, padding) for form in forms for padding in ("", "pad", others.get(form))]
    for index, (form, padding) in enumerate(pairs):
        if padding is None:
            continue
        mask = "+".join(part for part in (form.replace("hint", "causal"), padding) if part)
        length, heads = ((5, 2), (33, 4), (8, 2), (5, 4))[index // 2 % 4]
        problem = replace(
            SELF, queries=length, keys=length, num_heads=heads, embed_dim=24, mask=mask, is_causal=form == "hint",
            need_weights=index % 5 == 3,
        )  # fmt: skip
        mode: Mode = "inference_mode" if index % 7 == 0 else "inference"
        yield _make_case(problem, dtype=DTYPES[index % len(DTYPES)], mode=mode)
    # Long sequences with padding in all of them.
    problem = replace(SELF, batch=2, queries=257, keys=257, embed_dim=8, mask="padall", regime="peaked")
    yield _make_case(problem, mode="inference")


def _generate_overflow() -> Iterator[Case]:
    """Generate cases whose product of query and key overflows in float16 unless the query is scaled first."""
    problem = replace(CROSS, embed_dim=48, bias=False, regime="overflow")
    yield _make_case(problem, dtype="float16", mode="train")
    yield _make_case(replace(problem, embed_dim=192, keys=33, need_weights=True), dtype="float16", mode="inference")
    yield _make_case(replace(problem, num_heads=1, embed_dim=256), dtype="bfloat16")


def _generate_modes() -> Iterator[Case]:
    """Generate cases in which a mode stands beside a mask or beside an empty axis.

    Under autocast in eval() without gradients, the first condition of the reference's fast path holds. Compilers trace
    the code, so a guard for an empty axis or a fully masked row may be lost (pytorch/pytorch#195812).
    """
    for mask in ("none", "pad", "padfloat", "float2d"):
        yield _make_case(replace(SELF, mask=mask), dtype="bfloat16", mode="autocast_inference")
    yield _make_case(replace(SELF, mask="pad", need_weights=True), dtype="bfloat16", mode="autocast_inference")
    for problem in (replace(CROSS, batch=0), replace(CROSS, keys=0), replace(CROSS, mask="empty2d")):
        yield _make_case(problem, mode="aot")
    yield _make_case(replace(CROSS, batch=0), mode="exported")


def _generate_dropout() -> Iterator[Case]:
    """Generate cases whose outputs are random: they use dropout in training, with various other arguments."""
    weights = replace(CROSS, need_weights=True)
    for dropout, mask in ((0.1, "none"), (0.5, "bool3d"), (0.1, "pad")):
        yield _make_case(replace(weights, dropout=dropout, mask=mask), mode="train")
    yield _make_case(replace(CROSS, dropout=0.1, mask="float2d"), mode="train")
    yield _make_case(replace(SELF, dropout=0.5, mask="causal", is_causal=True), mode="train")
    yield _make_case(replace(weights, dropout=0.5, average_attn_weights=True), mode="sampling")
    yield _make_case(replace(weights, dropout=0.25, batch=None), mode="frozen")
    yield _make_case(
        replace(weights, dropout=0.25, batch_first=False, add_zero_attn=True, add_bias_kv=True), mode="train"
    )
    yield _make_case(replace(weights, dropout=0.25), dtype="float64", mode="train")
    yield _make_case(replace(weights, dropout=0.25), dtype="bfloat16", mode="train")
    # The hint with wide heads or more than 128 keys, in float64, in which checks compare gradients under dropout.
    hint = replace(CROSS, queries=11, keys=13, num_heads=1, mask="causal", is_causal=True, dropout=0.5)
    yield _make_case(replace(hint, embed_dim=128), dtype="float64", mode="train")
    yield _make_case(replace(hint, num_heads=2, embed_dim=8, queries=17, keys=130), dtype="float64", mode="train")
    # With a single key, whose weight is 1 before dropout.
    yield _make_case(replace(CROSS, batch=5, queries=17, keys=1, dropout=0.5), mode="train")
    # With more than 64 queries or keys, checks can detect a dropout mask that repeats after one tile.
    yield _make_case(replace(weights, keys=130, dropout=0.25), mode="train")
    long = replace(weights, batch=1, queries=66, keys=257, num_heads=2)
    yield _make_case(replace(long, dropout=0.1, mask="pad"), mode="sampling")
    yield _make_case(
        replace(CROSS, batch=1, queries=130, keys=130, num_heads=2, dropout=0.25, mask="bool2d"), mode="train"
    )


def _generate_full() -> Iterator[Case]:
    pairs = build_covering_array(FACTORS, is_allowed, 2)
    yield from (row_to_case(row) for row in build_covering_array(FACTORS, is_allowed, 3, given=pairs))
    yield from _generate_coincident({**COINCIDENT, **TRIPLES}, 3)
    yield from _generate_whole_tiles(3)
    yield from _generate_exact(((2, 16), (33, 31), (7, 129), (5, 200)))
    widths = (1, 2, 3, 5, 16, 24, 40, 64, 72, 80, 96, 104, 111, 112, 128, 160, 192, 203, 256)
    for head_dim, dtype in product(widths, NARROW_AND_WIDE):
        yield _make_case(replace(CROSS, embed_dim=3 * head_dim, mask="bool2d"), dtype=dtype)
    for keys in (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257):
        for queries, mask in ((keys - 2, "none"), (keys, "pad")):
            yield _make_case(replace(CROSS, queries=queries, keys=keys, mask=mask))
    one = replace(CROSS, batch=1, queries=1025, keys=1025, embed_dim=8, num_heads=1, regime="peaked")
    for dtype in NARROW_AND_WIDE:
        yield _make_case(replace(one, mask="causal", is_causal=True), dtype=dtype, mode="train")
        yield _make_case(replace(one, num_heads=2, self_attention=True, mask="padall"), dtype=dtype, mode="inference")
    for layer, dtype in product(range(6), DTYPES):
        yield _make_case(replace(SENTENCES, regime=f"minilm{layer}", need_weights=True), dtype=dtype)
    # The error of accumulation in half precision is within the error budget with few keys, and far above the budget
    # with 1024 keys.
    for dtype in NARROW_DTYPES:
        yield _make_case(replace(CORE, batch=1, queries=16, keys=1024), dtype=dtype)
    # There are few compiled cases, because compilation takes about 15 s per graph.
    for mode in ("inductor", "inductor_train"):
        yield _make_case(replace(CROSS, queries=4, keys=4, num_heads=4, embed_dim=32), mode=mode)
        yield _make_case(replace(CROSS, mask="bool3d+pad", need_weights=True), mode=mode)
    yield _make_case(replace(SELF, mask="pad"), dtype="bfloat16", mode="inductor")
    yield _make_case(replace(CROSS, mask="causal", is_causal=True), mode="exported")
    yield _make_case(replace(SELF, add_bias_kv=True, add_zero_attn=True), mode="aot")


def _generate_slow() -> Iterator[Case]:
    for keys, dtype in product((512, 1024), DTYPES):
        yield _make_case(replace(CROSS, queries=keys // 2, keys=keys, mask="pad"), dtype=dtype)
    for dtype in NARROW_DTYPES:
        yield _make_case(replace(CORE, batch=1, queries=16, keys=4096), dtype=dtype)
    # Some kernels take larger tiles beyond 4096 keys.
    causal = replace(CROSS, batch=1, embed_dim=1, num_heads=1, mask="causal", is_causal=True)
    yield _make_case(replace(causal, queries=4097, keys=4097), mode="inference")


def _generate_gpu() -> Iterator[Case]:
    """Generate CUDA cases: every pair of argument values, and sizes at which kernels switch algorithms."""
    for row in build_covering_array(FACTORS, is_allowed, 2):
        yield row_to_case(row).with_fields(device=CUDA.name)
    for dtype, head_dim, keys in product(DTYPES, (32, 64, 128, 256), (127, 1024)):
        problem = replace(SELF, queries=keys, keys=keys, embed_dim=2 * head_dim, mask="causal", is_causal=True)
        yield _make_case(problem, dtype=dtype, mode="train").with_fields(device=CUDA.name)
    for dtype in NARROW_DTYPES:
        yield _make_case(PROBE, dtype=dtype).with_fields(device=CUDA.name)


def _generate_huge() -> Iterator[Case]:
    """Generate cases with few queries and very many keys.

    The check far_offsets repeats the queries until there are more than 2^31 query-key pairs.
    """
    wide = replace(CROSS, batch=1, queries=64, keys=46_400, num_heads=1, embed_dim=8)
    for mask in ("none", "pad", "bool2d"):
        yield _make_case(replace(wide, mask=mask), dtype="bfloat16", mode="inference")
    yield _make_case(replace(wide, queries=4, keys=32_768), mode="inference")


if __name__ == "__main__":
    write_lists()
