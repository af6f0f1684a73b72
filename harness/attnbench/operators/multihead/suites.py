"""Cases of multi-head attention by level, read from the lists of ids that ``generate_cases`` writes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from attnbench.cases import Case, Mode, Shape
from attnbench.operators.case_lists import CaseLists
from attnbench.operators.multihead.problem import CAUSAL_MASKS, MultiheadProblem

__all__ = [
    "CROSS",
    "LISTS",
    "PASSES",
    "SELF",
    "SENTENCES",
    "make_profile_cases",
    "make_shape_cases",
]

LISTS = CaseLists(
    operator="multihead",
    problem=MultiheadProblem,
    folder=Path(__file__).parent / "lists",
    version="4",
    kept={"core": "found", "full": "shown"},
)

# Call modes of the two cases that ``make_profile_cases`` returns for each length: ``inference`` runs a forward pass
# only, and ``train`` runs forward and backward.
PASSES: tuple[Mode, ...] = ("inference", "train")
# The sizes are pairwise distinct (batch 2, heads 3, queries 5, keys 7, head_dim 8, embed_dim 24; kdim 10 and vdim 14 in
# cases that set kdim and vdim). A transposed or swapped axis therefore changes a shape or a value. The head width 8 is
# not a power of 4, so the scale 1/√8 is rounded in every dtype.
CROSS = MultiheadProblem(batch=2, queries=5, keys=7, embed_dim=24, num_heads=3, bias=True, batch_first=True)
# A problem for the reference's fast path, which needs an even number of heads and one tensor as query, key and value.
SELF = MultiheadProblem(
    batch=3, queries=5, keys=5, embed_dim=24, num_heads=2, bias=True, batch_first=True, self_attention=True
)
# Three padded sentences of the text that comes with attnbench, with the sizes of the real encoder (width 384, 12
# heads).
SENTENCES = MultiheadProblem(
    batch=3, queries=14, keys=14, embed_dim=384, num_heads=12, bias=True, batch_first=True, self_attention=True,
    mask="pad", regime="minilm0",
)  # fmt: skip


# Names of masks that operators share, and the masks of this operator.
MASKS = {"bool": "bool2d", "float": "float2d", "padding": "pad"}


def make_shape_cases(shape: Shape) -> Sequence[Case]:
    """Return two cases that return no weights: one for each mode in ``PASSES``.

    With as many queries as keys they are self-attention, else one tensor is key and value.

    Raises: ValueError for a size or a mask that the reference does not have.
    """
    if shape.kv_heads not in (None, shape.heads):
        raise ValueError(
            f"torch.nn.MultiheadAttention has as many key heads as heads, got {shape.kv_heads}; the operator "
            "attention_core has shared key heads: name implementations of it, such as core_sdpa"
        )
    square = shape.queries == shape.keys
    mask = MASKS.get(shape.mask, shape.mask)
    if shape.padding and "pad" not in mask.split("+"):
        mask = "pad" if mask == "none" else f"{mask}+pad"
    problem = replace(
        SELF,
        batch=shape.batch,
        queries=shape.queries,
        keys=shape.keys,
        embed_dim=shape.heads * shape.head_dim,
        num_heads=shape.heads,
        self_attention=square,
        key_is_value=not square,
        mask=mask,
        is_causal=shape.mask in CAUSAL_MASKS,
        padding=shape.padding,
    )
    return [Case(operator="multihead", problem=problem, mode=mode) for mode in PASSES]


def make_profile_cases(lengths: Sequence[int]) -> Sequence[Case]:
    """Return two self-attention cases per length that return no weights: one for each mode in ``PASSES``."""
    return [
        Case(
            operator="multihead",
            problem=replace(SELF, batch=1, queries=n, keys=n, embed_dim=256, num_heads=4),
            mode=mode,
        )
        for n, mode in product(lengths, PASSES)
    ]
