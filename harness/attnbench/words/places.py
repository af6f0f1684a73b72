"""Where wrong elements are: coordinates of one element, and positions that all wrong elements share."""

from collections.abc import Sequence
from itertools import groupby

from attnbench.records.value_facts import Coordinate, SharedPositions
from attnbench.words.say import say

__all__ = ["describe_place", "describe_shared"]

_INDEX = "index ({index})"
_POSITION = "{axis} {position}"
_GROUPED = "{position} ({group})"
_OF = " of "
_ALL_IN = "all in {position}"
_ONLY_BEYOND = "only {axis} {first} and beyond"
_ONLY_RANGE = "only {axis} {first} to {last}"
_ONLY_NUMBERS = "only {axis} {positions}"
_ONLY_NAMES = "only {positions}"
_AND = " and "
# Plurals of the axes of the built-in operators.
_PLURALS = {"batch": "batches", "query": "queries", "key": "keys", "head": "heads", "feature": "features"}
_PLURAL = "{axis}s"


def describe_place(place: Sequence[Coordinate]) -> str:
    """Return the place of an element, as in ``batch 1, query 4, feature 7 (head 2)``; without axes, its index."""
    if all(not coordinate.axis for coordinate in place):
        return say(_INDEX, index=", ".join(str(coordinate.position) for coordinate in place))
    parts = []
    for _, along in groupby(place, key=lambda coordinate: coordinate.dimension):
        coordinates = list(along)
        own = ", ".join(_name_position(one.axis, one.position) for one in coordinates if not one.groups)
        groups = [_name_position(one.axis, one.position) for one in coordinates if one.groups]
        if own:
            parts.append(say(_GROUPED, position=own, group=say(_OF).join(groups)) if groups else own)
    return ", ".join(parts)


def describe_shared(shared: Sequence[SharedPositions]) -> str:
    """Return the positions that all wrong elements share, as in ``, all in head 2, only queries 64 and beyond``."""
    return "".join(f", {_describe_positions(one)}" for one in shared)


def _describe_positions(shared: SharedPositions) -> str:
    if len(shared.positions) == 1:
        return say(_ALL_IN, position=_name_position(shared.axis, shared.positions[0]))
    axis = _PLURALS.get(shared.axis) or say(_PLURAL, axis=shared.axis)
    if shared.is_range:
        first, last = shared.positions[0], shared.positions[-1]
        return say(_ONLY_BEYOND if shared.to_the_end else _ONLY_RANGE, axis=axis, first=first, last=last)
    numbered = all(isinstance(position, int) for position in shared.positions)
    positions = say(_AND).join(map(str, shared.positions))
    return say(_ONLY_NUMBERS if numbered else _ONLY_NAMES, axis=axis, positions=positions)


def _name_position(axis: str, position: int | str) -> str:
    return say(_POSITION, axis=axis, position=position) if isinstance(position, int) else position
