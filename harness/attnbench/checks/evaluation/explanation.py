"""What is wrong with a tensor in words: how much of it, where the worst is, and what the wrong elements share."""

from collections.abc import Sequence

from torch import Tensor

from attnbench.interface import Axis

__all__ = ["index_of", "place", "share", "shared"]

# Chance below which wrong elements that happen to share a coordinate count as sharing it for a reason.
COINCIDENCE = 1e-3
# Coordinates that are listed one by one at the most.
LISTED = 3


def share(count: int, total: int) -> str:
    """How many elements of all."""
    return f"{count} of {total} elements ({count / max(total, 1):.1%})"


def index_of(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Index of an element from its place in order."""
    index = []
    for extent in reversed(shape):
        flat, position = divmod(flat, extent)
        index.append(position)
    return tuple(reversed(index))


def place(index: tuple[int, ...], axes: Sequence[Axis]) -> str:
    """Where an element is: ``batch 1, query 4, feature 7``; by its index where nobody told what the axes are."""
    if not axes:
        return f"index {index}"
    words = []
    for dimension, position in enumerate(index):
        own = [_name(axis, position) for axis in axes if axis.dimension == dimension and not axis.belongs]
        to = [_name(axis, position) for axis in axes if axis.dimension == dimension and axis.belongs]
        if own:
            words.append(", ".join(own) + (f" ({' of '.join(to)})" if to else ""))
    return ", ".join(words)


def shared(wrong: Tensor, axes: Sequence[Axis]) -> str:
    """What wrong elements share, as the end of a sentence: ``, all in head 2, only queries 64 and beyond``."""
    count, words = int(wrong.sum()), []
    for dimension in range(wrong.dim()):
        along = [(axis.belongs, _along(wrong, count, axis)) for axis in axes if axis.dimension == dimension]
        own = [said for belongs, said in along if said and not belongs]
        to = [said for belongs, said in along if said and belongs]
        # What positions belong to says more than their range, and less than a single one.
        words += own if not to or any(said.startswith("all") for said in own) else to
    return "".join(f", {said}" for said in words)


def _along(wrong: Tensor, count: int, axis: Axis) -> str:
    """What wrong elements share along one axis, or nothing."""
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
        return f"all in {_named(axis, kept[0])}"
    return _several(axis, kept, list(extents))


def _several(axis: Axis, kept: list[int | str], known: list[int | str]) -> str:
    first = known.index(kept[0])
    in_a_row = kept == known[first : first + len(kept)]
    numbered = all(isinstance(position, int) for position in kept)
    words = f"{_plural(axis.word)} " if numbered else ""
    if in_a_row and numbered:
        last = "and beyond" if kept[-1] == known[-1] else f"to {kept[-1]}"
        return f"only {words}{kept[0]} {last}"
    return f"only {words}{' and '.join(map(str, kept))}" if len(kept) <= LISTED else ""


def _name(axis: Axis, position: int) -> str:
    return _named(axis, axis.positions[position])


def _named(axis: Axis, position: int | str) -> str:
    return f"{axis.word} {position}" if isinstance(position, int) else position


def _plural(word: str) -> str:
    if word.endswith("y") and not word.endswith("ey"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith("ch") else f"{word}s"
