"""Generate the case lists.

``python -m attnbench.operators.attention_core.generate_cases`` writes ``lists/<level>.txt``.

The list of a level contains the cases that the level adds to the previous level. ``core`` covers every pair of argument
values, and ``full`` covers every triple. A second covering array combines coincidences of sizes with the other
arguments, and a third one whole tiles. Further cases are chosen by hand for the reasons in the comments.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, cast

from attnbench.cases import DTYPES, NARROW_DTYPES, Case, Dtype, Level, Mode
from attnbench.devices.cuda import CUDA
from attnbench.interface import Covering
from attnbench.operators.attention_core.coincidences import COINCIDENT, is_coincident, resolve_row
from attnbench.operators.attention_core.problem import ALIGNED, LOGIT_STD, AttentionCoreProblem
from attnbench.operators.attention_core.restrictions import RESTRICTIONS
from attnbench.operators.attention_core.suites import GROUPED, LISTS, PASSES, PLAIN
from attnbench.operators.attention_core.whole_tiles import WHOLE_TILES, fill_row
from attnbench.operators.covering_array import build_covering_array, build_restricted_arrays

__all__ = ["COVERING", "FACTORS", "case_to_row", "is_allowed", "row_to_case", "write_lists"]

# The values of everything that can vary in a case; the covering arrays combine these values. Compiled modes are
# excluded, because compiling a graph takes seconds.
FACTORS: Mapping[str, tuple[Any, ...]] = {
    "dtype": DTYPES,
    "mode": ("eval", "inference", "train", "inference_mode"),
    "batch": (2, 1, 3),
    # Pairs of the numbers of query heads and key heads. None means equal numbers. Otherwise two, three or all query
    # heads share a key head.
    "heads": ((3, None), (6, 2), (4, 2), (5, 1), (1, None)),
    # Pairs of head_dim and head_dim_v; None means that head_dim_v equals head_dim.
    "widths": ((8, None), (8, 5), (5, 12), (16, None)),
    # Pairs of the numbers of queries and keys. One query is a decoding step. With more queries than keys, a
    # bottom-right causal mask has fully masked rows.
    "lengths": ((5, 7), (8, 8), (1, 9), (13, 4), (17, 33), (66, 72)),
    "causal": ("", *ALIGNED),
    "window": (None, 0, 3, 20),
    "added": ("", "bias2d", "bias4d", "alibi"),
    "ragged": (False, True),
    "softcap": (0.0, 3.0),
    "scale": (0.0, 0.2),
    "regime": tuple(LOGIT_STD),
}


def is_allowed(row: Mapping[str, Any]) -> bool:  # noqa: ARG001
    """Return True, because every row of the covering array, complete or partial, describes a valid case."""
    return True


def row_to_case(row: Mapping[str, Any]) -> Case:
    """Return the case that a row of the covering array describes."""
    (heads, kv_heads), (width, value_width), (queries, keys) = row["heads"], row["widths"], row["lengths"]
    parts = [row["causal"], "window" * (row["window"] is not None), row["added"], "ragged" * row["ragged"]]
    problem = AttentionCoreProblem(
        sequences=row["batch"], num_heads=heads, kv_heads=kv_heads, queries=queries, keys=keys, head_dim=width,
        head_dim_v=value_width, window=row["window"], softcap=row["softcap"], scale=row["scale"],
        mask="+".join(part for part in parts if part) or "none", regime=row["regime"],
    )  # fmt: skip
    return _make_case(problem, dtype=row["dtype"], mode=row["mode"])


def case_to_row(case: Case) -> dict[str, Any]:
    """Return the row of the covering array that describes a case: the inverse of ``row_to_case``."""
    problem: AttentionCoreProblem = case.problem
    return {
        "dtype": case.dtype,
        "mode": case.mode,
        "batch": problem.sequences,
        "heads": (problem.num_heads, problem.kv_heads),
        "widths": (problem.head_dim, problem.head_dim_v),
        "lengths": (problem.queries, problem.keys),
        "causal": next((part for part in ALIGNED if part in problem.parts), ""),
        "window": problem.window,
        "added": problem.bias or "alibi" * ("alibi" in problem.parts),
        "ragged": "ragged" in problem.parts,
        "softcap": problem.softcap,
        "scale": problem.scale,
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
    }
    LISTS.write(generated, map(row_to_case, build_restricted_arrays(FACTORS, is_allowed, RESTRICTIONS)))


def _make_case(problem: AttentionCoreProblem, *, dtype: Dtype = "float32", mode: Mode = "eval") -> Case:
    return Case(operator="attention_core", problem=problem, dtype=dtype, mode=mode)


# The sizes are so large that an average over all elements reveals a systematic error smaller than the rounding of one
# element. The head_dim 7 is not a power of 4, so the scale 1/√7 is rounded.
PROBE = replace(PLAIN, sequences=4, queries=33, keys=47, head_dim=7)


def _generate_quick() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _make_case(PLAIN, dtype=dtype)
    for mode in PASSES:
        yield _make_case(replace(PLAIN, mask="causal_tl"), mode=mode)
        yield _make_case(replace(PLAIN, mask="causal_br"), mode=mode)
    yield _make_case(GROUPED)
    yield _make_case(replace(GROUPED, kv_heads=1, head_dim_v=5), mode="inference")
    yield _make_case(replace(PLAIN, mask="causal_br+window", window=2))
    yield _make_case(replace(PLAIN, mask="window", window=3), dtype="bfloat16", mode="inference")
    yield _make_case(replace(PLAIN, mask="bias4d"))
    yield _make_case(replace(PLAIN, mask="causal_tl+alibi"))
    yield _make_case(replace(PLAIN, mask="causal_br", softcap=3.0))
    yield _make_case(replace(PLAIN, mask="ragged"))
    yield _make_case(replace(PLAIN, queries=1, keys=33, mask="causal_br+ragged"), mode="inference")
    yield _make_case(replace(PLAIN, scale=0.2, head_dim_v=5))
    yield _make_case(replace(GROUPED, regime="uniform", keys=8), dtype="bfloat16", mode="inference")
    yield _make_case(replace(GROUPED, regime="selection", mask="causal_br+window", window=0), dtype="float16")
    yield _make_case(PROBE, dtype="bfloat16")


def _generate_core() -> Iterator[Case]:
    yield from (row_to_case(row) for row in build_covering_array(FACTORS, is_allowed, 2))
    yield from _generate_coincident(2)
    yield from _generate_whole_tiles(2)
    yield from _generate_exact(((3, 8), (5, 17)), each=False)
    yield from (_make_case(PROBE, dtype=dtype) for dtype in DTYPES)
    yield from (_make_case(replace(PROBE, num_heads=6, kv_heads=2), dtype=dtype) for dtype in NARROW_DTYPES)
    yield from _generate_degenerate()
    # Kernels process keys in blocks (tiles). These numbers of keys fill the last tile exactly or only partly. Diagonals
    # of causal masks and edges of windows cross tiles.
    for (queries, keys), mask in product(((31, 32), (64, 65), (129, 130)), ("causal_tl", "causal_br+window")):
        window = 32 if "window" in mask else None
        yield _make_case(replace(PLAIN, queries=queries, keys=keys, mask=mask, window=window))
    # Windows with an edge next to the first or the last key, and windows wider than the sequence of keys.
    for window, queries in product((1, 6, 7), (7, 3)):
        yield _make_case(replace(PLAIN, queries=queries, mask="causal_br+window", window=window))
    # Decoding: one query or a few queries at the end of many keys.
    for (queries, keys), mask in product(((1, 64), (1, 257), (4, 129)), ("causal_br", "causal_br+alibi+ragged")):
        yield _make_case(replace(PLAIN, queries=queries, keys=keys, mask=mask), mode="inference")
    # A low soft-cap with every kind of mask and bias that is applied after the soft-cap.
    for added in ("bias2d", "bias4d", "alibi"):
        yield _make_case(replace(PLAIN, mask=f"causal_br+window+{added}+ragged", window=2, softcap=1.5), mode="train")
    for heads, kv_heads in ((12, 4), (8, 2), (9, 3)):
        yield _make_case(replace(GROUPED, num_heads=heads, kv_heads=kv_heads, mask="bias4d"), mode="train")
        yield _make_case(replace(GROUPED, num_heads=heads, kv_heads=kv_heads, mask="causal_tl+alibi"), mode="train")
    for width, value_width in ((1, 1), (64, 128), (128, 64), (40, 11)):
        yield _make_case(replace(PLAIN, head_dim=width, head_dim_v=value_width, mask="causal_br"))
    yield _make_case(replace(PLAIN, mask="causal_tl"), mode="aot")
    yield _make_case(replace(GROUPED, keys=5, mask="bias4d"), mode="aot")
    yield _make_case(replace(PLAIN, mask="causal_br+ragged"), mode="exported")
    # Implementations often have a separate code path for compilation. These cases use arguments that such a path may
    # ignore by mistake.
    yield _make_case(replace(PLAIN, mask="causal_br+window", window=2, softcap=3.0), mode="aot")
    yield _make_case(replace(PLAIN, mask="causal_br+alibi+ragged"), mode="aot")
    yield _make_case(replace(GROUPED, mask="causal_tl"), mode="aot")
    yield from _generate_single_values()
    yield from _generate_branches()


def _generate_branches() -> Iterator[Case]:
    """Generate cases with several things at which kernels branch: one query, grouped heads, widths, the dtype."""
    # A decoding step with grouped heads and a bias of each head.
    for mask, mode in zip(("bias4d", "causal_br+bias4d"), PASSES, strict=True):
        yield _make_case(replace(GROUPED, queries=1, mask=mask), mode=mode)
    for value_width, dtype in ((104, "bfloat16"), (72, "float16")):
        one = replace(PLAIN, num_heads=1, head_dim=128, regime="peaked")
        yield _make_case(replace(one, head_dim_v=value_width), dtype=cast("Dtype", dtype), mode="train")
        yield _make_case(replace(one, mask="causal_br"), dtype=cast("Dtype", dtype), mode="train")
    for mask, dtype in zip(ALIGNED, NARROW_DTYPES, strict=True):
        some = replace(PLAIN, sequences=1, num_heads=2, queries=64, keys=128, mask=mask, regime="peaked")
        yield _make_case(some, dtype=dtype, mode="train")


def _generate_coincident(strength: int) -> Iterator[Case]:
    """Generate the cases of the second covering array."""
    yield from (row_to_case(resolve_row(row)) for row in build_covering_array(COINCIDENT, is_coincident, strength))


def _generate_whole_tiles(strength: int) -> Iterator[Case]:
    """Generate the cases of the third covering array."""
    rows = build_covering_array(WHOLE_TILES, is_allowed, strength)
    yield from (row_to_case(fill_row(row)) for row in rows)


def _generate_single_values() -> Iterator[Case]:
    """Generate cases with argument values that real models use but ``FACTORS`` does not contain."""
    # In batches of at least 4 sequences (``BATCH_WITH_AN_EMPTY_ONE``), the last sequence has no keys.
    for mask in ("ragged", "causal_br+ragged"):
        yield _make_case(replace(PLAIN, sequences=6, mask=mask), mode="train")
    yield _make_case(replace(PLAIN, sequences=6, queries=1, keys=33, mask="causal_br+window+ragged", window=4))
    yield _make_case(replace(PLAIN, sequences=3, mask="causal_br+ragged", int32_lengths=True), mode="train")
    # The soft-cap 50 of Gemma 2 (https://arxiv.org/abs/2408.00118, section 2) with logits that are large enough to
    # reach the soft-cap.
    yield _make_case(replace(GROUPED, mask="causal_br", softcap=50.0, regime="onehot"), mode="train")
    yield _make_case(replace(PLAIN, scale=1.0), mode="train")
    # Windows that are at least as wide as a tile of 64 keys, but that do not contain all keys.
    yield _make_case(replace(PLAIN, queries=70, keys=140, mask="causal_br+window", window=64))
    yield _make_case(replace(PLAIN, queries=140, keys=140, mask="window", window=100), mode="inference")
    yield _make_case(replace(GROUPED, num_heads=16, kv_heads=4, mask="causal_tl"), mode="train")
    # A bias that is minus infinity at some keys, and at all keys of one query.
    yield _make_case(replace(PLAIN, mask="bias2d", bias_hides=True), mode="train")
    yield _make_case(replace(PLAIN, mask="causal_br+bias4d", bias_hides=True), dtype="bfloat16")


def _generate_exact(lengths: Iterable[tuple[int, int]], *, each: bool = True) -> Iterator[Case]:
    """Generate cases whose output is exact; without ``each``, one length has grouped heads, and the other has not."""
    for (queries, keys), dtype in product(lengths, DTYPES):
        mode: Mode = "inference" if (keys + DTYPES.index(dtype)) % 2 else "eval"
        some = replace(PLAIN, queries=queries, keys=keys, sequences=3)
        grouped = replace(GROUPED, queries=queries, keys=keys)
        yield _make_case(replace(some, regime="uniform", mask="ragged"), dtype=dtype, mode=mode)
        yield _make_case(replace(some, regime="zeroleak", mask="ragged"), dtype=dtype, mode=mode)
        yield _make_case(replace(some, regime="zeroleak", mask="causal_br+ragged"), dtype=dtype, mode=mode)
        for mask in ("window", "causal_tl+window", "causal_br+window"):
            for problem in (some, grouped):
                if each or (problem is grouped) == (keys > 8):
                    yield _make_case(replace(problem, regime="selection", mask=mask, window=0), dtype=dtype, mode=mode)
    for keys, dtype in product((8, 64), DTYPES):
        if each or keys > 8:
            yield _make_case(replace(PLAIN, regime="uniform", keys=keys), dtype=dtype)
        yield _make_case(replace(GROUPED, regime="uniform", keys=keys), dtype=dtype)
    # More equal logits than two tiles of 64 keys.
    yield _make_case(replace(PLAIN, regime="uniform", keys=256))


def _generate_degenerate() -> Iterator[Case]:
    """Generate cases without keys, queries or sequences, and one case in which every size is 1."""
    for mask in ("none", "causal_br", "ragged"):
        yield _make_case(replace(PLAIN, sequences=0, mask=mask))
        yield _make_case(replace(PLAIN, queries=0, mask=mask))
        yield _make_case(replace(PLAIN, keys=0, mask=mask))
    yield _make_case(replace(PLAIN, sequences=1, num_heads=1, queries=1, keys=1, head_dim=1))
    empty: tuple[dict[str, Any], ...] = ({"sequences": 0}, {"queries": 0}, {"keys": 0})
    for nothing in empty:
        yield _make_case(replace(PLAIN, **nothing), dtype="bfloat16", mode="train")
        yield _make_case(replace(GROUPED, mask="causal_tl+bias4d", **nothing), dtype="float16", mode="train")


def _generate_full() -> Iterator[Case]:
    pairs = build_covering_array(FACTORS, is_allowed, 2)
    yield from (row_to_case(row) for row in build_covering_array(FACTORS, is_allowed, 3, given=pairs))
    yield from _generate_coincident(3)
    yield from _generate_whole_tiles(3)
    yield from _generate_exact(((2, 16), (33, 31), (5, 200)))
    widths, dtypes = (1, 2, 3, 16, 24, 40, 64, 96, 111, 128, 160, 256), ("float32", "bfloat16")
    for width, dtype in product(widths, cast("tuple[Dtype, ...]", dtypes)):
        yield _make_case(replace(PLAIN, head_dim=width, mask="causal_br"), dtype=dtype)
    for keys in (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257):
        yield _make_case(replace(PLAIN, queries=keys - 2, keys=keys, mask="causal_br+window", window=keys // 2))
        yield _make_case(replace(PLAIN, queries=keys, keys=keys, mask="causal_tl+ragged"))
        yield _make_case(replace(PLAIN, queries=1, keys=keys, mask="causal_br+ragged"), mode="inference")
    # The error of accumulation in half precision is within the error budget with few keys, and far above the budget
    # with 1024 keys.
    for dtype in NARROW_DTYPES:
        yield _make_case(replace(PLAIN, sequences=1, queries=16, keys=1024), dtype=dtype)
    # There are few compiled cases, because compilation takes about 15 s per graph.
    yield _make_case(replace(PLAIN, mask="causal_tl"), mode="inductor")
    yield _make_case(replace(GROUPED, mask="causal_br+window+bias4d", window=2, softcap=3.0), mode="inductor_train")
    yield _make_case(replace(PLAIN, mask="causal_tl+alibi"), mode="exported")


def _generate_slow() -> Iterator[Case]:
    for keys, dtype in product((512, 1024), DTYPES):
        yield _make_case(replace(PLAIN, queries=keys // 2, keys=keys, mask="causal_br+ragged"), dtype=dtype)


def _generate_gpu() -> Iterator[Case]:
    """Generate CUDA cases: every pair of argument values, and sizes at which kernels switch algorithms."""
    for row in build_covering_array(FACTORS, is_allowed, 2):
        yield row_to_case(row).with_fields(device=CUDA.name)
    for dtype, width, keys in product(DTYPES, (32, 64, 128, 256), (127, 1024)):
        problem = replace(PLAIN, num_heads=2, queries=keys, keys=keys, head_dim=width, mask="causal_tl")
        yield _make_case(problem, dtype=dtype, mode="train").with_fields(device=CUDA.name)
    for dtype, keys in product(NARROW_DTYPES, (1024, 4096)):
        decoding = replace(PLAIN, num_heads=8, kv_heads=2, queries=1, keys=keys, head_dim=64, mask="causal_br")
        yield _make_case(decoding, dtype=dtype, mode="inference").with_fields(device=CUDA.name)


if __name__ == "__main__":
    write_lists()
