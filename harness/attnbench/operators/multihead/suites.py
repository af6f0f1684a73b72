"""Cases of multi-head attention by level, read from the lists of ids that ``generate_cases`` writes."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from attnbench.cases import NESTED, Case, Level, Mode, Shape
from attnbench.operators.multihead.problem import CAUSAL_MASKS, MultiheadProblem

__all__ = [
    "CROSS",
    "FOLDER",
    "PASSES",
    "SELF",
    "SENTENCES",
    "VERSION",
    "load_pool",
    "load_suite",
    "make_profile_cases",
    "make_shape_cases",
]

# Version of the case lists, increased with every change of a list. Results of different versions are not comparable.
VERSION = "3"
FOLDER = Path(__file__).parent / "lists"
# Names of the case lists that are maintained by hand, keyed by the level to which the list belongs. ``found`` has cases
# that fuzzing found, and ``shown`` has cases on which mutants fail.
KEPT: dict[Level, str] = {"core": "found", "full": "shown"}

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
    return [Case.parse(case_id, {"multihead": MultiheadProblem}) for case_id in ids]


def _read_lines(name: str) -> list[str]:
    """Return the case ids in the file of a list, without the comment lines."""
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


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
