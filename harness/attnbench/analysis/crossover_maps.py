"""Crossover maps over two axes: cells of which two sizes vary, such as length and batch, and all else is equal.

The answers are those of the summary; nothing is decided here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from attnbench.analysis.summary import Decision, Place, SummaryTable
from attnbench.cases import CaseId

__all__ = ["AXES", "LENGTH", "Axis", "CrossoverMap", "find_maps"]

# A number of queries and of keys, or another size.
Value = tuple[int, ...]

# A size in the id of a case, such as B16. More digits than 15 are no size of anything.
_SIZE = re.compile(r"([A-Za-z]+)(0|[1-9]\d{0,14})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A size that varies."""

    # Letter of the size in the ids of cases; empty for the length.
    letter: str
    # Whether the width varies with the heads, so that the width of a head is equal.
    equal_heads: bool = False


LENGTH = Axis(letter="")
# The sizes that may be axes. Of two axes, the first one has the columns. B: batch. H: heads. K: heads of keys. D: width
# of a head. E: width. W: window.
AXES = (
    LENGTH, Axis(letter="B"), Axis(letter="H", equal_heads=True), Axis(letter="H"), Axis(letter="K"), Axis(letter="D"),
    Axis(letter="E"), Axis(letter="W"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverMap:
    """The answers of one machine, device, dtype, number of threads, pass and mode, over two axes."""

    place: Place
    pass_: str
    mode: str
    operator: str
    # What is equal in all cells, as in the ids of cases: sizes without those of the axes, and the rest of the problem.
    form: str
    # Numbers of queries and keys of all cells; empty if the length is an axis.
    length: Value
    row_axis: Axis
    column_axis: Axis
    # Values of the axes, in order.
    rows: tuple[Value, ...]
    columns: tuple[Value, ...]
    # The calls that were planned, by row and column; a pair of values without one was not.
    cells: Mapping[tuple[Value, Value], Decision]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """A call with its sizes by letter; the length has the empty letter."""

    # Place, pass, mode, and operator.
    place: tuple[Place, str, str, str]
    sizes: Mapping[str, Value]
    # Parts of the sizes that are not a letter with a number.
    others: tuple[str, ...]
    # Flags, mask, regime and seed.
    rest: str
    call: Decision


@dataclass(frozen=True, slots=True)
class _Frame:
    """What is equal in all cells of a map."""

    place: tuple[Place, str, str, str]
    form: str
    length: Value


def find_maps(tables: Iterable[SummaryTable]) -> Iterator[CrossoverMap]:
    """Yield the maps of these tables.

    A value of an axis is in a map if at least two cells with it were planned. A pair of axes has a map only if the map
    has a timed cell that no map of an earlier pair has. If a third size varies, each of its values has a map.
    """
    points = [_make_point(Decision(table=table, column=column)) for table in tables for column in table.columns]
    varying = [axis for axis in AXES if _varies(axis, points)]
    covered: set[int] = set()
    for column_axis, row_axis in combinations(varying, 2):
        found: dict[_Frame, dict[tuple[Value, Value], _Point]] = {}
        for point in points:
            if (located := _locate(point, row_axis, column_axis)) is not None:
                frame, pair = located
                found.setdefault(frame, {})[pair] = point
        for frame, cells in found.items():
            kept = _keep_repeated(cells)
            timed = {id(point) for point in kept.values() if point.call.cells}
            if timed - covered:
                covered |= timed
                yield _make_map(frame, kept, row_axis, column_axis)


def _make_point(call: Decision) -> _Point:
    case = CaseId.parse(call.column.case)
    own, _, rest = case.problem.partition("/")
    parts = own.split(".")
    sizes = {found[1]: int(found[2]) for part in parts if (found := _SIZE.fullmatch(part))}
    others = tuple(part for part in parts if not _SIZE.fullmatch(part))
    if len(sizes) + len(others) < len(parts):
        # A letter occurs twice, so that its size is not known.
        sizes, others = {}, tuple(parts)
    length = tuple(sizes.pop(letter) for letter in "LS" if letter in sizes)
    known: dict[str, Value] = {letter: (size,) for letter, size in sizes.items()}
    return _Point(
        place=(call.table.place, call.column.pass_, case.mode, case.operator),
        sizes=known | ({LENGTH.letter: length} if length else {}),
        others=others,
        rest=rest,
        call=call,
    )


def _varies(axis: Axis, points: Iterable[_Point]) -> bool:
    # The width of a head follows from the width, where an operator has the width as its size.
    letters = "DE" if axis.letter == "D" else [axis.letter]
    return any(len({point.sizes.get(letter) for point in points}) > 1 for letter in letters)


def _locate(point: _Point, row_axis: Axis, column_axis: Axis) -> tuple[_Frame, tuple[Value, Value]] | None:
    """Return in which map of these axes a call is, and its row and column; None if it lacks a size of an axis."""
    left = dict(point.sizes)
    column = _take(column_axis, left)
    row = _take(row_axis, left)
    if column is None or row is None:
        return None
    length = left.pop(LENGTH.letter, ())
    sizes = sorted(f"{letter}{size}" for letter, (size,) in left.items())
    form = "/".join((point.place[-1], ".".join((*sizes, *point.others)), point.rest))
    return _Frame(point.place, form, length), (row, column)


def _take(axis: Axis, sizes: dict[str, Value]) -> Value | None:
    """Take the value of an axis out of the sizes; None if they have no such value."""
    if axis.equal_heads:
        heads, width = sizes.get("H", (0,))[0], sizes.get("E", (0,))[0]
        if "D" in sizes or not heads or not width or width % heads:
            return None
        del sizes["E"]
        sizes["D"] = (width // heads,)
    return sizes.pop(axis.letter, None)


def _keep_repeated(cells: Mapping[tuple[Value, Value], _Point]) -> dict[tuple[Value, Value], _Point]:
    """Return the cells without rows and columns of a single cell; at least two rows and two columns, or nothing."""
    kept = dict(cells)
    lines: dict[tuple[int, Value], set[tuple[Value, Value]]] = {}
    for pair in kept:
        for side in (0, 1):
            lines.setdefault((side, pair[side]), set()).add(pair)
    single = [line for line, pairs in lines.items() if len(pairs) == 1]
    while single:
        for pair in list(lines[single.pop()]):
            kept.pop(pair)
            for side in (0, 1):
                line = side, pair[side]
                lines[line].discard(pair)
                if len(lines[line]) == 1:
                    single.append(line)
    return kept


def _make_map(
    frame: _Frame, points: Mapping[tuple[Value, Value], _Point], row_axis: Axis, column_axis: Axis
) -> CrossoverMap:
    place, pass_, mode, operator = frame.place
    return CrossoverMap(
        place=place,
        pass_=pass_,
        mode=mode,
        operator=operator,
        form=frame.form,
        length=frame.length,
        row_axis=row_axis,
        column_axis=column_axis,
        rows=_order(row for row, _ in points),
        columns=_order(column for _, column in points),
        cells={pair: point.call for pair, point in points.items()},
    )


def _order(values: Iterable[Value]) -> tuple[Value, ...]:
    """Return the different values in order; of queries and keys, the larger number counts first."""
    return tuple(sorted(set(values), key=lambda value: (max(value), value)))
