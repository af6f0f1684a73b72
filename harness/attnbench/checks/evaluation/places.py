"""Where the wrong elements of a tensor are, and which positions they have in common."""

from collections.abc import Sequence

from torch import Tensor

from attnbench.interface import Axis
from attnbench.records.value_facts import Coordinate, SharedPositions

__all__ = ["COINCIDENCE", "find_place", "find_shared_positions", "unravel_index"]

# Positions that all wrong elements share are found if the probability that they share them by chance is at most this
# number. A fault model is found only if the probability that it fits by chance is at most this number.
COINCIDENCE = 1e-3
# Largest number of positions along an axis that are listed one by one.
LISTED = 3


def unravel_index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Convert a flat index to one index for each dimension."""
    index = []
    for extent in reversed(shape):
        flat, position = divmod(flat, extent)
        index.append(position)
    return tuple(reversed(index))


def find_place(index: tuple[int, ...], axes: Sequence[Axis]) -> tuple[Coordinate, ...]:
    """Return the coordinates of an element; without axes, its index."""
    if not axes:
        return tuple(Coordinate(dimension=place, axis="", position=position) for place, position in enumerate(index))
    return tuple(
        Coordinate(dimension=dimension, axis=axis.word, position=axis.positions[position], groups=axis.belongs)
        for dimension, position in enumerate(index)
        for axis in axes
        if axis.dimension == dimension
    )


def find_shared_positions(wrong: Tensor, axes: Sequence[Axis]) -> tuple[SharedPositions, ...]:
    """Return the positions that all wrong elements share, for each axis along which there are any."""
    count, parts = int(wrong.sum()), []
    for dimension in range(wrong.dim()):
        along = [(axis.belongs, _share_axis(wrong, count, axis)) for axis in axes if axis.dimension == dimension]
        own = [shared for belongs, shared in along if shared and not belongs]
        to = [shared for belongs, shared in along if shared and belongs]
        # Two axes may describe one dimension: one counts features, the other counts the heads to which the features
        # belong. The features are taken if all wrong elements share one feature, or if they share no heads.
        parts += own if not to or any(len(shared.positions) == 1 for shared in own) else to
    return tuple(parts)


def _share_axis(wrong: Tensor, count: int, axis: Axis) -> SharedPositions | None:
    """Return the positions of wrong elements along an axis, or None if chance may explain them or they are many."""
    others = [dimension for dimension in range(wrong.dim()) if dimension != axis.dimension]
    hit = (wrong.any(dim=others) if others else wrong).tolist()
    extents: dict[int | str, int] = {}
    for position in axis.positions:
        extents[position] = extents.get(position, 0) + 1
    touched = {position for position, is_hit in zip(axis.positions, hit, strict=True) if is_hit}
    kept = [position for position in extents if position in touched]
    covered = sum(extents[position] for position in kept) / len(hit)
    if not kept or covered**count > COINCIDENCE:
        return None
    if len(kept) == 1:
        return SharedPositions(axis=axis.word, positions=(kept[0],))
    return _share_several(axis.word, kept, list(extents))


def _share_several(word: str, kept: list[int | str], every: list[int | str]) -> SharedPositions | None:
    """Return the positions ``kept`` as a range or a short list; None for a long list."""
    first = every.index(kept[0])
    if kept == every[first : first + len(kept)] and all(isinstance(position, int) for position in kept):
        ends = (kept[0], kept[-1])
        return SharedPositions(axis=word, positions=ends, is_range=True, to_the_end=kept[-1] == every[-1])
    return SharedPositions(axis=word, positions=tuple(kept)) if len(kept) <= LISTED else None
