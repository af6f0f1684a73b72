"""Cases of attention on split heads, by level: lists of ids that are part of the project, made by ``listing``."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from attnbench.cases import NESTED, Case, Level, Mode
from attnbench.operators.attention_core.problem import AttentionCoreProblem

__all__ = ["FOLDER", "GROUPED", "PASSES", "PLAIN", "VERSION", "profile", "suite"]

# Raised with every change of a list: results are comparable at an equal one.
VERSION = "2"
FOLDER = Path(__file__).parent / "lists"
# Lists that are not made but kept, by the level that they are part of: ids that show the shipped mistakes.
KEPT: dict[Level, str] = {"full": "shown"}
# How a forward pass, and one with backward, are called.
PASSES: tuple[Mode, ...] = ("inference", "train")
# Pairwise distinct sizes: a transposed or swapped axis then changes a shape or a value. The head width is no power of
# 4, so that the scale 1/√8 is rounded in every dtype.
PLAIN = AttentionCoreProblem(sequences=2, num_heads=3, queries=5, keys=7, head_dim=8)
# Six heads share two of keys: blocks of three, or in turn, are then different heads.
GROUPED = AttentionCoreProblem(sequences=2, num_heads=6, kv_heads=2, queries=5, keys=7, head_dim=8)


def suite(level: Level) -> Sequence[Case]:
    """Cases of a level; the nested ones hold those of the level before, and no case is there twice."""
    levels = NESTED[: NESTED.index(level) + 1] if level in NESTED else (level,)
    names = [name for one in levels for name in (one, KEPT.get(one)) if name]
    ids = dict.fromkeys(line for name in names for line in _lines(name))
    return [Case.parse(case_id, {"attention_core": AttentionCoreProblem}) for case_id in ids]


def _lines(name: str) -> list[str]:
    """Lines of a list that are no comments; a level without a list adds nothing."""
    place = FOLDER / f"{name}.txt"
    lines = place.read_text(encoding="utf-8").splitlines() if place.exists() else []
    return [line for line in lines if line and not line.startswith("#")]


def profile(lengths: Sequence[int]) -> Sequence[Case]:
    """One case per length and pass: causal, eight heads of width 64, forward in inference and with backward in train.

    As many queries as keys, so that both corners are the same.
    """
    return [
        Case(
            operator="attention_core",
            problem=AttentionCoreProblem(sequences=1, num_heads=8, queries=n, keys=n, head_dim=64, mask="causal_tl"),
            mode=mode,
        )
        for n, mode in product(lengths, PASSES)
    ]
