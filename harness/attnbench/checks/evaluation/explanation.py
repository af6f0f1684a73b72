"""Describing wrong elements of a tensor in words: how many, where, and which coordinates they have in common."""

from collections.abc import Sequence

from torch import Tensor

from attnbench.interface import Axis

__all__ = ["describe_place", "describe_shared_places", "format_share", "unravel_index"]

# A coordinate that all wrong elements share is mentioned if the probability that they share it by chance is at most
# this number. A fault model is mentioned only if the probability that it fits by chance is at most this number.
COINCIDENCE = 1e-3
# Largest number of positions along an axis that are listed one by one.
LISTED = 3


def format_share(count: int, total: int) -> str:
    """Format a number of elements, and its percentage of all elements."""
    return f"{count} of {total} elements ({count / max(total, 1):.1%})"


def unravel_index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Convert a flat index to one index for each dimension."""
    index = []
    for extent in reversed(shape):
        flat, position = divmod(flat, extent)
        index.append(position)
    return tuple(reversed(index))


def describe_place(index: tuple[int, ...], axes: Sequence[Axis]) -> str:
    """Describe where an element is, as in ``batch 1, query 4, feature 7``; without axes, give its index."""
    if not axes:
        return f"index {index}"
    parts = []
    for dimension, position in enumerate(index):
        own = [_name_position(axis, position) for axis in axes if axis.dimension == dimension and not axis.belongs]
        to = [_name_position(axis, position) for axis in axes if axis.dimension == dimension and axis.belongs]
        if own:
            parts.append(", ".join(own) + (f" ({' of '.join(to)})" if to else ""))
    return ", ".join(parts)


def describe_shared_places(wrong: Tensor, axes: Sequence[Axis]) -> str:
    """Describe the coordinates that all wrong elements share, as in ``, all in head 2, only queries 64 and beyond``."""
    count, parts = int(wrong.sum()), []
    for dimension in range(wrong.dim()):
        along = [(axis.belongs, _describe_axis(wrong, count, axis)) for axis in axes if axis.dimension == dimension]
        own = [phrase for belongs, phrase in along if phrase and not belongs]
        to = [phrase for belongs, phrase in along if phrase and belongs]
        # Two axes may describe one dimension: one counts features, the other counts the heads to which
        # the features belong. The text describes the features if all wrong elements share one
        # feature, or if there is no description of the heads. Otherwise it describes the heads.
        parts += own if not to or any(phrase.startswith("all") for phrase in own) else to
    return "".join(f", {phrase}" for phrase in parts)


def _describe_axis(wrong: Tensor, count: int, axis: Axis) -> str:
    """Describe positions of wrong elements along an axis; return "" if chance may explain them."""
    others = [dimension for dimension in range(wrong.dim()) if dimension != axis.dimension]
    hit = (wrong.any(dim=others) if others else wrong).tolist()
    extents: dict[int | str, int] = {}
    for position in axis.positions:
        extents[position] = extents.get(position, 0) + 1
    touched = {position for position, is_hit in zip(axis.positions, hit, strict=True) if is_hit}
    kept = [position for position in extents if position in touched]
    covered = sum(extents[position] for position in kept) / len(hit)
    if not kept or covered**count > COINCIDENCE:
        return ""
    if len(kept) == 1:
        return f"all in {_format_position(axis, kept[0])}"
    return _describe_several(axis, kept, list(extents))


def _describe_several(axis: Axis, kept: list[int | str], all_positions: list[int | str]) -> str:
    """Describe the positions ``kept`` as a range or a short list; return "" for a long list."""
    first = all_positions.index(kept[0])
    in_a_row = kept == all_positions[first : first + len(kept)]
    numbered = all(isinstance(position, int) for position in kept)
    words = f"{_pluralize(axis.word)} " if numbered else ""
    if in_a_row and numbered:
        last = "and beyond" if kept[-1] == all_positions[-1] else f"to {kept[-1]}"
        return f"only {words}{kept[0]} {last}"
    return f"only {words}{' and '.join(map(str, kept))}" if len(kept) <= LISTED else ""


def _name_position(axis: Axis, position: int) -> str:
    return _format_position(axis, axis.positions[position])


def _format_position(axis: Axis, position: int | str) -> str:
    return f"{axis.word} {position}" if isinstance(position, int) else position


def _pluralize(word: str) -> str:
    if word.endswith("y") and not word.endswith("ey"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith("ch") else f"{word}s"
