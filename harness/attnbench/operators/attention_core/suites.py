"""Cases of attention on split heads by level, read from the lists of ids that ``generate_cases`` writes."""

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

from attnbench.cases import NESTED, Case, Level, Mode, Shape
from attnbench.operators.attention_core.problem import AttentionCoreProblem

__all__ = [
    "FOLDER", "GROUPED", "PASSES", "PLAIN", "VERSION", "load_pool", "load_suite", "make_profile_cases",
    "make_shape_cases",
]  # fmt: skip

# Version of the case lists, increased with every change of a list. Results of different versions are not comparable.
VERSION = "2"
FOLDER = Path(__file__).parent / "lists"
# Names of the case lists that are maintained by hand, keyed by the level to which the list belongs. ``shown`` has cases
# on which mutants fail.
KEPT: dict[Level, str] = {"full": "shown"}
# Call modes of the two cases that ``make_profile_cases`` returns for each length: ``inference`` runs a forward pass
# only, and ``train`` runs forward and backward.
PASSES: tuple[Mode, ...] = ("inference", "train")
# The sizes are pairwise distinct, so that a transposed or swapped axis changes a shape or a value. The head width 8 is
# not a power of 4, so the scale 1/√8 is rounded in every dtype.
PLAIN = AttentionCoreProblem(sequences=2, num_heads=3, queries=5, keys=7, head_dim=8)
# Six query heads share two key heads. The key heads of the six query heads are 0 0 0 1 1 1, as the operator demands. An
# implementation that interleaves the key heads uses 0 1 0 1 0 1.
GROUPED = AttentionCoreProblem(sequences=2, num_heads=6, kv_heads=2, queries=5, keys=7, head_dim=8)


def load_suite(level: Level) -> Sequence[Case]:
    """Return the cases of a suite, without duplicates.

    Each of the suites ``quick``, ``core``, ``full`` and ``slow`` contains the cases of the suite before it.
    """
    levels = NESTED[: NESTED.index(level) + 1] if level in NESTED else (level,)
    names = [name for one in levels for name in (one, KEPT.get(one)) if name]
    ids = dict.fromkeys(line for name in names for line in _read_lines(name))
    return _parse(ids)


def load_pool() -> Sequence[Case]:
    """Return the cases from which the suites are supplemented, the one with the fewest query-key pairs first."""
    return _parse(_read_lines("pool"))


def _parse(ids: Iterable[str]) -> list[Case]:
    return [Case.parse(case_id, {"attention_core": AttentionCoreProblem}) for case_id in ids]


def _read_lines(name: str) -> list[str]:
    """Return the case ids in the file of a list; a list without a file is empty."""
    place = FOLDER / f"{name}.txt"
    lines = place.read_text(encoding="utf-8").splitlines() if place.exists() else []
    return [line for line in lines if line and not line.startswith("#")]


# Names of masks that operators share, and the masks of this operator.
SHARED_MASKS = {"causal": "causal_br", "float": "bias2d", "padding": "ragged"}


def make_shape_cases(shape: Shape) -> Sequence[Case]:
    """Return two cases of this shape: one for each mode in ``PASSES``.

    Raises: ValueError for a size or a mask that the operator does not have.
    """
    mask = SHARED_MASKS.get(shape.mask, shape.mask)
    if shape.padding and "ragged" not in mask.split("+"):
        mask = "ragged" if mask == "none" else f"{mask}+ragged"
    problem = AttentionCoreProblem(
        sequences=shape.batch,
        num_heads=shape.heads,
        kv_heads=None if shape.kv_heads == shape.heads else shape.kv_heads,
        queries=shape.queries,
        keys=shape.keys,
        head_dim=shape.head_dim,
        mask=mask,
        padding=shape.padding,
    )
    return [Case(operator="attention_core", problem=problem, mode=mode) for mode in PASSES]


def make_profile_cases(lengths: Sequence[int]) -> Sequence[Case]:
    """Return two causal cases per length, with eight heads of width 64: one for each mode in ``PASSES``.

    There are as many queries as keys, so causal masks aligned at the top left and at the bottom right are equal.
    """
    return [
        Case(
            operator="attention_core",
            problem=AttentionCoreProblem(sequences=1, num_heads=8, queries=n, keys=n, head_dim=64, mask="causal_tl"),
            mode=mode,
        )
        for n, mode in product(lengths, PASSES)
    ]
