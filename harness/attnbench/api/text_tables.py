"""Texts and tables that the terminal and the results of Python calls share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from attnbench.report.terminal import PLAIN_WIDTH

if TYPE_CHECKING:
    # Not imported with attnbench.conform: a script that prints nothing does not need it.
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "TextTable",
    "format_html",
    "format_text",
    "print_tables",
]

# Largest number of rows of a table in a notebook; a line says how many are left out. The data frame has all rows.
MOST_HTML_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table of texts with a title, and a legend below it; both may be empty."""

    title: str = ""
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    legend: str = ""
    # Columns whose long texts continue on a further line instead of being cut.
    folded: frozenset[str] = frozenset()
    # Style of the first cell of each row on a terminal; empty: none has a style.
    styles: tuple[str, ...] = ()


def print_tables(tables: Iterable[TextTable], out: "Console") -> None:
    """Print tables with their titles and legends."""
    from rich.text import Text

    for table in tables:
        if table.title:
            out.print(Text(table.title, style="italic"), soft_wrap=True)
        out.print(_make_rich_table(table))
        if table.legend:
            out.print(Text(table.legend, style="dim"), soft_wrap=True)


def format_text(tables: Iterable[TextTable], lines: Sequence[str]) -> str:
    """Return tables, and the lines below them, as the terminal shows them in ``PLAIN_WIDTH`` characters."""
    from rich.console import Console

    out = Console(file=StringIO(), highlight=False, width=PLAIN_WIDTH, color_system=None)
    print_tables(tables, out)
    assert isinstance(out.file, StringIO)
    shown = (line.rstrip() for line in out.file.getvalue().splitlines())
    return "\n".join((*shown, *lines))


def format_html(tables: Iterable[TextTable], lines: Sequence[str]) -> str:
    """Return tables, and the lines below them, as HTML for a notebook; every text is escaped."""
    parts = [_format_html_table(table) for table in tables]
    return "\n".join((*parts, *(f"<p>{escape(line)}</p>" for line in lines)))


def _make_rich_table(table: TextTable) -> "Table":
    from rich.table import Column, Table
    from rich.text import Text

    columns = [Column(name, overflow="fold") if name in table.folded else name for name in table.head]
    made = Table(*columns, box=None, pad_edge=False)
    for row, style in zip(table.rows, table.styles or ("",) * len(table.rows), strict=True):
        made.add_row(Text(row[0], style=style), *map(Text, row[1:]))
    return made


def _format_html_table(table: TextTable) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.head)
    rows = "\n".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows[:MOST_HTML_ROWS]
    )
    left = len(table.rows) - MOST_HTML_ROWS
    more = f"<p>… and {left} more rows</p>" if left > 0 else ""
    title = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    legend = f"<p>{escape(table.legend)}</p>" if table.legend else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>{more}{legend}"
