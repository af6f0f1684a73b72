"""Crossover maps of a report: tables whose rows and columns are two sizes, and the rows of maps.csv."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from attnbench.analysis.crossover import DECISIVE, FASTER, Entry
from attnbench.analysis.crossover_maps import Axis, CrossoverMap, MapCell, Untimed, Value, find_maps
from attnbench.records.run_file import StoredRun
from attnbench.report.choices import Choice, describe_choice
from attnbench.report.decisions import get_place, make_row
from attnbench.report.forms import (
    describe_form,
    describe_length,
    describe_pass,
    describe_size,
    name_size,
    split_numbers,
)
from attnbench.report.numbers import format_count, shorten_text
from attnbench.report.series import Place
from attnbench.report.slugs import make_slug
from attnbench.report.tables import list_rows

__all__ = ["MapTable", "Maps", "ShownCell", "collect_maps", "tabulate_maps"]

# ``MOST_MAPS``: most maps of the page. ``MOST_CELLS``: most cells of one of them; a larger table is not read. A map of
# 9 cells takes 5 kB of the page; these limits keep all of them below 0.5 MB.
MOST_MAPS, MOST_CELLS = 6, 240
# Longest note of a cell, in characters.
LONGEST_NOTE = 120
# Columns of maps.csv that decisions.csv has as well.
SHARED = (
    "machine", "device", "dtype", "threads", "mode", "pass", "reference", "answer",
    "implementations", "gain", "gain_low", "gain_high", "processes", "reason", "undecided", "conforming_answer",
    "conforming", "peak_bytes", "reference_peak_bytes",
)  # fmt: skip
COLUMNS = ("map", "shape", "row_axis", "row", "column_axis", "column", "case", *SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCell:
    """A cell of a map in words."""

    choice: Choice
    # Implementations whose marks the cell has: those to use. Empty if nothing is decided.
    names: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapTable:
    """A map as the page shows it."""

    # Name of the map's files without extension, and its anchor.
    stem: str
    place: Place
    pass_: str
    # The axes in words, such as "length × batch"; the columns first.
    axes: str
    # What is equal in all cells, in words.
    shape: str
    columns: tuple[str, ...]
    # The label and the cells of each row.
    rows: tuple[tuple[str, tuple[ShownCell, ...]], ...]

    @property
    def title(self) -> str:
        """The pass, the axes and the shape, in words."""
        return f"Map, {self.pass_}: {self.axes}" + (f"; {self.shape}" if self.shape else "")

    @property
    def cells(self) -> tuple[ShownCell, ...]:
        """All cells, row by row."""
        return tuple(cell for _, cells in self.rows for cell in cells)

    @property
    def remark(self) -> str:
        """How many cells are decided, if not all are; empty if all are."""
        decided = sum(cell.choice.kind in DECISIVE for cell in self.cells)
        if decided == len(self.cells):
            return ""
        return f"{decided or 'None'} of {format_count(len(self.cells), 'cell')} {_is(decided)} decided."


@dataclass(frozen=True, slots=True, kw_only=True)
class Maps:
    """All maps of a report; ``shown`` are those of the page."""

    every: tuple[CrossoverMap, ...]
    shown: tuple[MapTable, ...]

    @property
    def left_out(self) -> str:
        """A sentence about maps that the page does not show; empty if there are none."""
        left = len(self.every) - len(self.shown)
        if not left:
            return ""
        return f"{format_count(left, 'further map')} {_is(left)} in maps.csv."

    def select(self, place: Place) -> tuple[MapTable, ...]:
        """Return the shown maps of a place."""
        return tuple(one for one in self.shown if one.place == place)

    def cover(self, place: Place, entries: Iterable[Entry]) -> bool:
        """Return whether the page has a map with each of the entries of a place."""
        if len(self.shown) < len(self.every):
            return False
        shown = {id(cell.entry) for one in self.every for cell in one.cells.values()}
        return all(id(entry) in shown for entry in entries if get_place(entry) == place)


def collect_maps(runs: Sequence[StoredRun], entries: Sequence[Entry], untimed: pd.DataFrame) -> Maps:
    """Return the maps of these entries; ``untimed`` is the table of planned calls without a timing."""
    places = {stored.run.id: (stored.run.machine.name, stored.run.threads) for stored in runs}
    calls = (
        Untimed(machine=places[row["run"]][0], threads=places[row["run"]][1], case=row["case"], reason=row["reason"])
        for row in list_rows(untimed)
    )
    every = tuple(sorted(find_maps(entries, calls), key=_order))
    small = [one for one in every if len(one.rows) * len(one.columns) <= MOST_CELLS]
    shown = [_make_table(one, _name(one, every)) for one in small[:MOST_MAPS]]
    return Maps(every=every, shown=tuple(shown))


def tabulate_maps(maps: Maps) -> pd.DataFrame:
    """Return the rows of maps.csv: one for each cell of each map for which something was timed or planned."""
    rows = [
        _make_csv_row(one, cell, _name(one, maps.every))
        for one in maps.every
        for _, cell in sorted(one.cells.items(), key=lambda pair: pair[0])
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"processes": "Int64"})


def _order(one: CrossoverMap) -> tuple[object, ...]:
    place = (one.machine, one.device, one.dtype, one.threads)
    return (*place, one.pass_, one.mode != "inference", one.mode, split_numbers(one.form), one.length)


def _name(one: CrossoverMap, every: Sequence[CrossoverMap]) -> str:
    if len(every) == 1:
        return "map"
    axes = (_name_axis(one.operator, axis) + "=" * axis.equal_heads for axis in (one.row_axis, one.column_axis))
    words = (one.machine, one.device, one.dtype, str(one.threads), one.pass_, one.mode, one.form, str(one.length))
    return "map-" + make_slug(*words, *axes)


def _make_table(one: CrossoverMap, stem: str) -> MapTable:
    names = [_name_axis(one.operator, axis) for axis in (one.column_axis, one.row_axis)]
    equal = [describe_form(one.form, varying={one.row_axis.letter, one.column_axis.letter})]
    equal += [f"length {_describe(one.operator, Axis(letter=''), one.length)}"] if one.length else []
    labels = ["length {}" if not axis.letter else "{}" for axis in (one.column_axis, one.row_axis)]
    return MapTable(
        stem=stem,
        place=Place(one.machine, one.device, one.dtype, one.threads),
        pass_=describe_pass(one.pass_, one.mode),
        axes=" × ".join(names),
        shape=", ".join(words for words in equal if words),
        columns=tuple(labels[0].format(_describe(one.operator, one.column_axis, value)) for value in one.columns),
        rows=tuple(
            (
                labels[1].format(_describe(one.operator, one.row_axis, row)),
                tuple(_describe_cell(one.cells.get((row, column))) for column in one.columns),
            )
            for row in one.rows
        ),
    )


def _describe_cell(cell: MapCell | None) -> ShownCell:
    if cell is None:
        return ShownCell(choice=Choice(kind="", words="not measured"))
    if cell.entry is None:
        note = shorten_text("; ".join(cell.reasons), LONGEST_NOTE)
        return ShownCell(choice=Choice(kind="", words="not timed"), note=note)
    choice, best = describe_choice([cell.entry]), cell.entry.best
    if choice.is_for_now:
        return ShownCell(choice=choice, names=(cell.entry.reference,))
    used = best.names if best.kind in FASTER else best.names[:1]
    return ShownCell(choice=choice, names=used if best.kind in DECISIVE else ())


def _name_axis(operator: str, axis: Axis) -> str:
    return name_size(operator, axis.letter) if axis.letter else "length"


def _describe(operator: str, axis: Axis, value: Value) -> str:
    """Return a value of an axis in words, such as "batch 4"; of the length, without a word before it."""
    return describe_size(operator, axis.letter, str(value[0])) if axis.letter else describe_length(value[0], value[-1])


def _make_csv_row(one: CrossoverMap, cell: MapCell, name: str) -> Mapping[str, object]:
    own = make_row(cell.entry) if cell.entry else dict(_describe_untimed(one, cell))
    return {column: own.get(column) for column in SHARED} | {
        "map": name,
        "shape": describe_form(one.form, varying={one.row_axis.letter, one.column_axis.letter}),
        "row_axis": _name_axis(one.operator, one.row_axis),
        "row": _spell(cell.row),
        "column_axis": _name_axis(one.operator, one.column_axis),
        "column": _spell(cell.column),
        "case": cell.case,
    }


def _describe_untimed(one: CrossoverMap, cell: MapCell) -> Iterator[tuple[str, object]]:
    yield from (("machine", one.machine), ("device", one.device), ("dtype", one.dtype), ("threads", one.threads))
    yield from (("mode", one.mode), ("pass", one.pass_), ("answer", ""), ("reason", "; ".join(cell.reasons)))


def _spell(value: Value) -> str:
    """Return a value as the options of the command line have it: "128", or "1:512" for queries and keys that differ."""
    return ":".join(map(str, dict.fromkeys(value)))


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
