"""Makes the case lists: ``python -m attnbench.operators.attention_core.generate_cases`` writes ``lists/<level>.txt``.

A list holds what its level adds to the one before. ``core`` covers every pair of argument values, ``full`` every
triple; beside the covering arrays stand cases that were chosen for a reason, which is told where they are made.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, cast

from attnbench.cases import DTYPES, NESTED, Case, Dtype, Level, Mode
from attnbench.operators.attention_core.problem import ALIGNED, LOGIT_STD, AttentionCoreProblem
from attnbench.operators.attention_core.suites import FOLDER, GROUPED, PASSES, PLAIN, VERSION
from attnbench.operators.covering import covering_array

__all__ = ["FACTORS", "allowed", "case_of", "row_of", "write"]

HALF: tuple[Dtype, ...] = ("bfloat16", "float16")
# Every argument, in every form that it takes, and what else a case can vary. Compiled modes are not among them: a graph
# costs seconds.
FACTORS: Mapping[str, tuple[Any, ...]] = {
    "dtype": DTYPES,
    "mode": ("eval", "inference", "train", "inference_mode"),
    "batch": (2, 1, 3),
    # Heads of queries and of keys: as many, groups of three and of two, one for all.
    "heads": ((3, None), (6, 2), (4, 2), (5, 1), (1, None)),
    # Width of heads and of values.
    "widths": ((8, None), (8, 5), (5, 12), (16, None)),
    # One query is a decoding step; more queries than keys leave rows without any key at the bottom right.
    "lengths": ((5, 7), (8, 8), (1, 9), (13, 4), (17, 33), (66, 72)),
    "causal": ("", *ALIGNED),
    "window": (None, 0, 3, 20),
    "added": ("", "bias2d", "bias4d", "alibi"),
    "ragged": (False, True),
    "softcap": (0.0, 3.0),
    "scale": (0.0, 0.2),
    "regime": tuple(LOGIT_STD),
}


def allowed(row: Mapping[str, Any]) -> bool:  # noqa: ARG001
    """Whether a row, or a part of one, is a case: all are."""
    return True


def case_of(row: Mapping[str, Any]) -> Case:
    """Case of a row."""
    (heads, kv_heads), (width, value_width), (queries, keys) = row["heads"], row["widths"], row["lengths"]
    parts = [row["causal"], "window" * (row["window"] is not None), row["added"], "ragged" * row["ragged"]]
    problem = AttentionCoreProblem(
        sequences=row["batch"], num_heads=heads, kv_heads=kv_heads, queries=queries, keys=keys, head_dim=width,
        head_dim_v=value_width, window=row["window"], softcap=row["softcap"], scale=row["scale"],
        mask="+".join(part for part in parts if part) or "none", regime=row["regime"],
    )  # fmt: skip
    return _case(problem, dtype=row["dtype"], mode=row["mode"])


def row_of(case: Case) -> dict[str, Any]:
    """Row of a case: the inverse of ``case_of``."""
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


def write() -> None:
    """Write the list of every level."""
    steps = {"quick": _quick, "core": _core, "full": _full, "slow": _slow}
    known: set[str] = set()
    for level in NESTED:
        known |= _write(level, steps[level](), known)
    _write("gpu", _gpu(), set())


def _write(level: Level, cases: Iterable[Case], known: set[str]) -> set[str]:
    ids = [case_id for case_id in dict.fromkeys(case.id for case in cases) if case_id not in known]
    text = "\n".join([f"# Cases of the level {level}, list {VERSION}; made by listing.py.", *ids])
    (FOLDER / f"{level}.txt").write_text(text + "\n", encoding="utf-8")
    return set(ids)


def _case(problem: AttentionCoreProblem, *, dtype: Dtype = "float32", mode: Mode = "eval") -> Case:
    return Case(operator="attention_core", problem=problem, dtype=dtype, mode=mode)


# Large enough for an average over elements to show a systematic error below one element's rounding; 7 is no power of 4.
PROBE = replace(PLAIN, sequences=4, queries=33, keys=47, head_dim=7)


def _quick() -> Iterator[Case]:
    for dtype in DTYPES:
        yield _case(PLAIN, dtype=dtype)
    for mode in PASSES:
        yield _case(replace(PLAIN, mask="causal_tl"), mode=mode)
        yield _case(replace(PLAIN, mask="causal_br"), mode=mode)
    yield _case(GROUPED)
    yield _case(replace(GROUPED, kv_heads=1, head_dim_v=5), mode="inference")
    yield _case(replace(PLAIN, mask="causal_br+window", window=2))
    yield _case(replace(PLAIN, mask="window", window=3), dtype="bfloat16", mode="inference")
    yield _case(replace(PLAIN, mask="bias4d"))
    yield _case(replace(PLAIN, mask="causal_tl+alibi"))
    yield _case(replace(PLAIN, mask="causal_br", softcap=3.0))
    yield _case(replace(PLAIN, mask="ragged"))
    yield _case(replace(PLAIN, queries=1, keys=33, mask="causal_br+ragged"), mode="inference")
    yield _case(replace(PLAIN, scale=0.2, head_dim_v=5))
    yield _case(replace(GROUPED, regime="uniform", keys=8), dtype="bfloat16", mode="inference")
    yield _case(replace(GROUPED, regime="selection", mask="causal_br+window", window=0), dtype="float16")
    yield _case(PROBE, dtype="bfloat16")


def _core() -> Iterator[Case]:
    yield from (case_of(row) for row in covering_array(FACTORS, allowed, 2))
    yield from _exact(((3, 8), (5, 17)))
    yield from (_case(PROBE, dtype=dtype) for dtype in DTYPES)
    yield from (_case(replace(PROBE, num_heads=6, kv_heads=2), dtype=dtype) for dtype in HALF)
    yield from _degenerate()
    # Tiles: a last one that is not full, and exactly full ones; diagonals and windows that cross them.
    for (queries, keys), mask in product(((16, 16), (31, 32), (64, 65), (129, 130)), ("causal_tl", "causal_br+window")):
        window = 32 if "window" in mask else None
        yield _case(replace(PLAIN, queries=queries, keys=keys, mask=mask, window=window))
    # Windows whose edge is next to either end, or beyond both.
    for window, queries in product((1, 6, 7), (7, 3)):
        yield _case(replace(PLAIN, queries=queries, mask="causal_br+window", window=window))
    # Decoding: one query, or a few, and the keys before them.
    for (queries, keys), mask in product(((1, 64), (1, 257), (4, 129)), ("causal_br", "causal_br+alibi+ragged")):
        yield _case(replace(PLAIN, queries=queries, keys=keys, mask=mask), mode="inference")
    # A cap that bends much, with everything that comes after it.
    for added in ("bias2d", "bias4d", "alibi"):
        yield _case(replace(PLAIN, mask=f"causal_br+window+{added}+ragged", window=2, softcap=1.5), mode="train")
    for heads, kv_heads in ((12, 4), (8, 2), (9, 3)):
        yield _case(replace(GROUPED, num_heads=heads, kv_heads=kv_heads, mask="bias4d"), mode="train")
        yield _case(replace(GROUPED, num_heads=heads, kv_heads=kv_heads, mask="causal_tl+alibi"), mode="train")
    for width, value_width in ((1, 1), (64, 128), (128, 64), (40, 11)):
        yield _case(replace(PLAIN, head_dim=width, head_dim_v=value_width, mask="causal_br"))
    yield _case(replace(PLAIN, mask="causal_tl"), mode="aot")
    yield _case(replace(GROUPED, keys=5, mask="bias4d"), mode="aot")
    yield _case(replace(PLAIN, mask="causal_br+ragged"), mode="exported")
    # A branch for compilers is a kernel of its own: whatever it may forget is there.
    yield _case(replace(PLAIN, mask="causal_br+window", window=2, softcap=3.0), mode="aot")
    yield _case(replace(PLAIN, mask="causal_br+alibi+ragged"), mode="aot")
    yield _case(replace(GROUPED, mask="causal_tl"), mode="aot")
    yield from _single()


def _single() -> Iterator[Case]:
    """Values that no factor has, each as models in use have it."""
    # More sequences than 4; the last one has no key.
    for mask in ("ragged", "causal_br+ragged"):
        yield _case(replace(PLAIN, sequences=6, mask=mask), mode="train")
    yield _case(replace(PLAIN, sequences=6, queries=1, keys=33, mask="causal_br+window+ragged", window=4))
    yield _case(replace(PLAIN, sequences=3, mask="causal_br+ragged", int32_lengths=True), mode="train")
    # The soft-cap of Gemma 2 (https://arxiv.org/abs/2408.00118, section 2), where logits are large enough to reach it.
    yield _case(replace(GROUPED, mask="causal_br", softcap=50.0, regime="onehot"), mode="train")
    yield _case(replace(PLAIN, scale=1.0), mode="train")
    # Windows of a whole tile and more, over more keys than they let through.
    yield _case(replace(PLAIN, queries=70, keys=140, mask="causal_br+window", window=64))
    yield _case(replace(PLAIN, queries=140, keys=140, mask="window", window=100), mode="inference")
    yield _case(replace(GROUPED, num_heads=16, kv_heads=4, mask="causal_tl"), mode="train")
    # A bias that hides, and a row of it that hides all.
    yield _case(replace(PLAIN, mask="bias2d", bias_hides=True), mode="train")
    yield _case(replace(PLAIN, mask="causal_br+bias4d", bias_hides=True), dtype="bfloat16")


def _exact(lengths: Iterable[tuple[int, int]]) -> Iterator[Case]:
    for (queries, keys), dtype in product(lengths, DTYPES):
        mode: Mode = "inference" if (keys + DTYPES.index(dtype)) % 2 else "eval"
        some = replace(PLAIN, queries=queries, keys=keys, sequences=3)
        grouped = replace(GROUPED, queries=queries, keys=keys)
        yield _case(replace(some, regime="uniform", mask="ragged"), dtype=dtype, mode=mode)
        yield _case(replace(some, regime="zeroleak", mask="ragged"), dtype=dtype, mode=mode)
        yield _case(replace(some, regime="zeroleak", mask="causal_br+ragged"), dtype=dtype, mode=mode)
        for mask in ("window", "causal_tl+window", "causal_br+window"):
            yield _case(replace(some, regime="selection", mask=mask, window=0), dtype=dtype, mode=mode)
            yield _case(replace(grouped, regime="selection", mask=mask, window=0), dtype=dtype, mode=mode)
    for keys, dtype in product((8, 64), DTYPES):
        yield _case(replace(PLAIN, regime="uniform", keys=keys), dtype=dtype)
        yield _case(replace(GROUPED, regime="uniform", keys=keys), dtype=dtype)


def _degenerate() -> Iterator[Case]:
    """Nothing to attend to, nobody who attends, nothing at all; and one of everything."""
    for mask in ("none", "causal_br", "ragged"):
        yield _case(replace(PLAIN, sequences=0, mask=mask))
        yield _case(replace(PLAIN, queries=0, mask=mask))
        yield _case(replace(PLAIN, keys=0, mask=mask))
    yield _case(replace(PLAIN, sequences=1, num_heads=1, queries=1, keys=1, head_dim=1))


def _full() -> Iterator[Case]:
    pairs = covering_array(FACTORS, allowed, 2)
    yield from (case_of(row) for row in covering_array(FACTORS, allowed, 3, given=pairs))
    yield from _exact(((2, 16), (33, 31), (5, 200)))
    widths, dtypes = (1, 2, 3, 16, 24, 40, 64, 96, 111, 128, 160, 256), ("float32", "bfloat16")
    for width, dtype in product(widths, cast("tuple[Dtype, ...]", dtypes)):
        yield _case(replace(PLAIN, head_dim=width, mask="causal_br"), dtype=dtype)
    for keys in (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257):
        yield _case(replace(PLAIN, queries=keys - 2, keys=keys, mask="causal_br+window", window=keys // 2))
        yield _case(replace(PLAIN, queries=keys, keys=keys, mask="causal_tl+ragged"))
        yield _case(replace(PLAIN, queries=1, keys=keys, mask="causal_br+ragged"), mode="inference")
    # Sums kept in half precision are within what rounding allows at short lengths, and far out at 1024 keys.
    for dtype in HALF:
        yield _case(replace(PLAIN, sequences=1, queries=16, keys=1024), dtype=dtype)
    # About 15 s a graph.
    yield _case(replace(PLAIN, mask="causal_tl"), mode="inductor")
    yield _case(replace(GROUPED, mask="causal_br+window+bias4d", window=2, softcap=3.0), mode="inductor_train")
    yield _case(replace(PLAIN, mask="causal_tl+alibi"), mode="exported")


def _slow() -> Iterator[Case]:
    for keys, dtype in product((512, 1024), DTYPES):
        yield _case(replace(PLAIN, queries=keys // 2, keys=keys, mask="causal_br+ragged"), dtype=dtype)


def _gpu() -> Iterator[Case]:
    """What only a GPU's kernels do: the pairs again, and lengths and widths at which they change their ways."""
    for row in covering_array(FACTORS, allowed, 2):
        yield case_of(row).with_fields(device="cuda")
    for dtype, width, keys in product(DTYPES, (32, 64, 128, 256), (127, 1024)):
        problem = replace(PLAIN, num_heads=2, queries=keys, keys=keys, head_dim=width, mask="causal_tl")
        yield _case(problem, dtype=dtype, mode="train").with_fields(device="cuda")
    for dtype, keys in product(HALF, (1024, 4096)):
        decoding = replace(PLAIN, num_heads=8, kv_heads=2, queries=1, keys=keys, head_dim=64, mask="causal_br")
        yield _case(decoding, dtype=dtype, mode="inference").with_fields(device="cuda")


if __name__ == "__main__":
    write()
