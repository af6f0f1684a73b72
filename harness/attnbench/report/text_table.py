"""Tables of aligned columns on a console."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from attnbench.report.console import Console, Part, Text, count_cells, list_parts
from attnbench.report.hidden_characters import spell_out

__all__ = ["TextTable", "print_tables"]

# Columns between two cells.
GAP = 2
# A column may become narrower than its longest word, but not narrower than this.
NARROWEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table with a title, and a legend below it; both may be empty.

    Texts that do not fit continue on further lines of the row; cells with several parts are never divided.
    """

    title: str = ""
    head: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    legend: str = ""
    # Names of the columns that are aligned to the right.
    right: frozenset[str] = frozenset()


def print_tables(tables: Iterable[TextTable], out: Console) -> None:
    """Print tables with their titles and legends."""
    for table in tables:
        if table.title:
            out.print(Part(table.title, "italic"))
        for line in _lay_out(table, out.width):
            out.print(line)
        if table.legend:
            out.print(Part(table.legend, "dim"))


def _lay_out(table: TextTable, width: int) -> Iterator[list[Part]]:
    """Yield the lines of a table."""
    rows = [tuple(Part(name, "bold") for name in table.head), *table.rows]
    widths = _choose_widths(rows, width)
    for row in rows:
        cells = [_wrap(cell, size) for cell, size in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=[Part("")]):
            line: list[Part] = []
            for name, own, size in zip(table.head, parts, widths, strict=True):
                space = Part(" " * (size - _measure(own)))
                line += [
                    *([Part(" " * GAP)] if line else []),
                    *([space, *own] if name in table.right else [*own, space]),
                ]
            while line and not line[-1].text.strip():
                line.pop()
            yield line


def _choose_widths(rows: Sequence[Sequence[Text]], width: int) -> list[int]:
    """Return the width of each column: of columns that do not fit beside one another, the widest become narrower.

    A column is at least as wide as its longest word, if that is possible.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(_measure_lines, column)) for column in columns]
    words = [max(map(_measure_word, column)) for column in columns]
    for least in (words, [min(NARROWEST, word) for word in words]):
        while sum(widths) + GAP * (len(widths) - 1) > width:
            place = max(range(len(widths)), key=lambda number: (widths[number] > least[number], widths[number]))
            if widths[place] <= least[place]:
                break
            widths[place] -= 1
    return widths


def _measure(parts: Iterable[Part]) -> int:
    return sum(count_cells(part.text) for part in parts)


def _measure_lines(cell: Text) -> int:
    return max((_measure(line) for line in _wrap(cell, None)), default=0)


def _measure_word(cell: Text) -> int:
    parts = list_parts(cell)
    return _measure(parts) if len(parts) != 1 else max(map(count_cells, parts[0].text.split()), default=0)


def _wrap(cell: Text, width: int | None) -> list[list[Part]]:
    """Return the lines of a cell that is ``width`` wide; None: as wide as it needs."""
    parts = list_parts(cell)
    if len(parts) != 1:
        return [parts]
    ((text, style),) = parts
    # What is shown is measured: a hidden character is as wide as its escape.
    lines = [
        part
        for line in spell_out(text).split("\n")
        for part in ([line] if width is None or count_cells(line) <= width else _divide(line, width))
    ]
    return [[Part(line, style)] for line in lines]


def _divide(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_on_hyphens=False)
