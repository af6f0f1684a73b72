"""Crossover maps of a report: tables whose rows and columns are two sizes, with what to use in each cell."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attnbench.analysis.crossover_maps import Axis, CrossoverMap, Value, find_maps
from attnbench.analysis.summary import Decision, SummaryTable
from attnbench.report.case_forms import describe_form, describe_length, describe_size, name_size, split_numbers
from attnbench.report.columns import Columns, TableColumn
from attnbench.report.numbers import format_digits, shorten_text
from attnbench.report.slugs import make_slug
from attnbench.report.summary_grid import name_pass
from attnbench.words.answers import NOTHING_CHOSEN, format_percent
from attnbench.words.findings import describe_reason
from attnbench.words.say import say
from attnbench.words.summary import describe_place

__all__ = ["MAPS", "MOST_CELLS", "MOST_MAPS", "MapTable", "Maps", "ShownCell", "list_map_rows", "make_maps"]

# ``MOST_MAPS``: most maps of the page. ``MOST_CELLS``: most cells of one of them; a larger table is not read. A map of
# 9 cells takes 5 kB of the page; these limits keep all of them below 0.5 MB.
MOST_MAPS, MOST_CELLS = 6, 240
# Longest reason in a cell, in characters.
LONGEST_REASON = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCell:
    """A cell of a map: what to use, with its ratio to the baseline and its bound, or why there is no answer."""

    name: str = ""
    ratio: str = ""
    bound: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapTable:
    """A map as the page shows it."""

    # Name of the map, and its anchor.
    stem: str
    place: str
    title: str
    columns: tuple[str, ...]
    # The label and the cells of each row.
    rows: tuple[tuple[str, tuple[ShownCell, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Maps:
    """All maps of a report; ``shown`` are those of the page."""

    every: tuple[CrossoverMap, ...]
    shown: tuple[MapTable, ...]


def make_maps(tables: Sequence[SummaryTable]) -> Maps:
    """Return the maps of these tables."""
    every = tuple(sorted(find_maps(tables), key=_order))
    small = [one for one in every if len(one.rows) * len(one.columns) <= MOST_CELLS]
    return Maps(every=every, shown=tuple(_make_table(one, _name(one, every)) for one in small[:MOST_MAPS]))


class _MapRow(NamedTuple):
    """A cell of a map for which something was timed or planned."""

    name: str
    map: CrossoverMap
    row: Value
    column: Value
    call: Decision


def list_map_rows(maps: Maps) -> Iterator[_MapRow]:
    """Yield the cells of all maps."""
    for one in maps.every:
        name = _name(one, maps.every)
        yield from (_MapRow(name, one, *pair, one.cells[pair]) for pair in sorted(one.cells))


def _order(one: CrossoverMap) -> tuple[object, ...]:
    return (*one.place, one.pass_, one.mode != "inference", one.mode, split_numbers(one.form), one.length)


def _name(one: CrossoverMap, every: Sequence[CrossoverMap]) -> str:
    if len(every) == 1:
        return "map"
    axes = (_name_axis(one.operator, axis) + "=" * axis.equal_heads for axis in (one.row_axis, one.column_axis))
    words = (*map(str, one.place), one.pass_, one.mode, one.form, str(one.length))
    return "map-" + make_slug(*words, *axes)


def _make_table(one: CrossoverMap, stem: str) -> MapTable:
    axes = " × ".join(_name_axis(one.operator, axis) for axis in (one.column_axis, one.row_axis))
    equal = [_describe_shape(one)]
    equal += [f"length {_describe(one.operator, Axis(letter=''), one.length)}"] if one.length else []
    first = next(iter(one.cells.values())).column
    return MapTable(
        stem=stem,
        place=describe_place(one.place),
        title=f"{name_pass(first)}: {axes}; {', '.join(words for words in equal if words)}",
        columns=tuple(_label(one.operator, one.column_axis, value) for value in one.columns),
        rows=tuple(
            (
                _label(one.operator, one.row_axis, row),
                tuple(_show_cell(one.cells.get((row, column))) for column in one.columns),
            )
            for row in one.rows
        ),
    )


def _show_cell(call: Decision | None) -> ShownCell:
    if call is None:
        return ShownCell(reason="not measured")
    answer, ratio = call.answer, call.chosen.ratio if call.chosen else None
    if answer is None:
        reasons = "; ".join(map(describe_reason, call.untimed))
        return ShownCell(reason=shorten_text(reasons, LONGEST_REASON) or say(NOTHING_CHOSEN))
    shown = f"{format_digits(ratio.value)} ×" if ratio else ""
    return ShownCell(
        name=answer.name,
        ratio="baseline" if answer.name == call.table.baseline else shown,
        bound=f"≤ {format_percent(answer.regret)}" if answer.regret is not None else "?",
    )


def _label(operator: str, axis: Axis, value: Value) -> str:
    return _describe(operator, axis, value) if axis.letter else f"length {_describe(operator, axis, value)}"


def _name_axis(operator: str, axis: Axis) -> str:
    return name_size(operator, axis.letter) if axis.letter else "length"


def _describe(operator: str, axis: Axis, value: Value) -> str:
    """Return a value of an axis in words, such as "batch 4"; of the length, without a word before it."""
    return describe_size(operator, axis.letter, str(value[0])) if axis.letter else describe_length(value[0], value[-1])


def _describe_shape(one: CrossoverMap) -> str:
    return describe_form(one.form, varying={one.row_axis.letter, one.column_axis.letter})


def _join(value: Value) -> str:
    """Return a value as the options of the command line have it: "128", or "1:512" for queries and keys that differ."""
    return ":".join(map(str, dict.fromkeys(value)))


MAPS: Columns = (
    TableColumn("map", "name of the map", "name"),
    TableColumn("machine", "name of the machine", "map.place.machine"),
    TableColumn("device", "device", "map.place.device"),
    TableColumn("dtype", "dtype", "map.place.dtype"),
    TableColumn("threads", "number of threads", "map.place.threads"),
    TableColumn("shape", "what all cells have in common", lambda row: _describe_shape(row.map)),
    TableColumn(
        "row_axis", "the size that varies from row to row", lambda row: _name_axis(row.map.operator, row.map.row_axis)
    ),
    TableColumn(
        "row",
        "its value, as the command line takes it: `1:512` is one query and 512 keys",
        lambda row: _join(row.row),
    ),
    TableColumn(
        "column_axis",
        "the size that varies from column to column",
        lambda row: _name_axis(row.map.operator, row.map.column_axis),
    ),
    TableColumn("column", "its value", lambda row: _join(row.column)),
    TableColumn("case", "id of the case", "call.column.case"),
    TableColumn("mode", "call mode", "map.mode"),
    TableColumn("pass", "`forward` or `forward+backward`", "map.pass_"),
    TableColumn("baseline", "the implementation by whose time others are divided", "call.table.baseline"),
    TableColumn("use", "what to use", "call.answer.name"),
    TableColumn("regret", "the bound on its regret", "call.answer.regret"),
    TableColumn("unbounded", "why there is no bound", "call.answer.unbounded"),
    TableColumn("ratio", "its time divided by the baseline's", "call.chosen.ratio.value"),
    TableColumn("processes", "number of processes that timed the call", "call.answer.processes"),
    TableColumn(
        "reason",
        "why there is no answer",
        lambda row: "" if row.call.answer else "; ".join(map(describe_reason, row.call.untimed)),
    ),
)
