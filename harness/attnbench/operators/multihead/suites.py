"""Cases of multi-head attention, by level: lists of ids that are part of the project, made by ``listing``."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from attnbench.cases import NESTED, Case, Level, Mode
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["CROSS", "FOLDER", "PASSES", "SELF", "SENTENCES", "VERSION", "profile", "suite"]

# Raised with every change of a list: results are comparable at an equal one.
VERSION = "2"
FOLDER = Path(__file__).parent / "lists"
# Lists that are not made but kept, by the level that they are part of: ids that fuzzing found, and those that show
# the shipped mistakes.
KEPT: dict[Level, str] = {"core": "found", "full": "shown"}

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
    """Cases of a level; the nested ones hold those of the level before, and no case is there twice."""
    levels = NESTED[: NESTED.index(level) + 1] if level in NESTED else (level,)
    names = [name for one in levels for name in (one, KEPT.get(one)) if name]
    ids = dict.fromkeys(line for name in names for line in _lines(name))
    return [Case.parse(case_id, {"multihead": MultiheadProblem}) for case_id in ids]


def _lines(name: str) -> list[str]:
    """Lines of a list that are no comments."""
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def profile(lengths: Sequence[int]) -> Sequence[Case]:
    """One case per length and pass: self-attention without weights, forward in inference and with backward in train."""
    return [
        Case(
            operator="multihead",
            problem=replace(SELF, batch=1, queries=n, keys=n, embed_dim=256, num_heads=4),
            mode=mode,
        )
        for n, mode in product(lengths, PASSES)
    ]
