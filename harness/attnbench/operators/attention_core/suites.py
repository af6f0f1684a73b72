"""Cases of attention on split heads by level, read from the lists of ids that ``generate_cases`` writes."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from attnbench.cases import Case, Mode, Shape
from attnbench.operators.attention_core.problem import AttentionCoreProblem
from attnbench.operators.case_lists import CaseLists

__all__ = ["GROUPED", "LISTS", "PASSES", "PLAIN", "make_profile_cases", "make_shape_cases"]

LISTS = CaseLists(
    operator="attention_core",
    problem=AttentionCoreProblem,
    folder=Path(__file__).parent / "lists",
    version="3",
    kept={"full": "shown"},
)
# Call modes of the two cases that ``make_profile_cases`` returns for each length: ``inference`` runs a forward pass
# only, and ``train`` runs forward and backward.
PASSES: tuple[Mode, ...] = ("inference", "train")
# The sizes are pairwise distinct, so that a transposed or swapped axis changes a shape or a value. The head width 8 is
# not a power of 4, so the scale 1/√8 is rounded in every dtype.
PLAIN = AttentionCoreProblem(sequences=2, num_heads=3, queries=5, keys=7, head_dim=8)
# Six query heads share two key heads. The key heads of the six query heads are 0 0 0 1 1 1, as the operator demands. An
# implementation that interleaves the key heads uses 0 1 0 1 0 1.
GROUPED = AttentionCoreProblem(sequences=2, num_heads=6, kv_heads=2, queries=5, keys=7, head_dim=8)


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
