"""Tables and lines as text and as HTML, for results of Python calls."""

from collections.abc import Iterable, Sequence
from html import escape
from io import StringIO

from attnbench.report.console import Console, Text, list_parts
from attnbench.report.hidden_characters import spell_out
from attnbench.report.text_table import TextTable, print_tables

__all__ = ["format_html", "format_text"]

# Largest number of rows of a table in a notebook; a line says how many are left out. The data frame has all rows.
MOST_HTML_ROWS = 100


def format_text(tables: Iterable[TextTable], lines: Sequence[str]) -> str:
    """Return tables, and the lines below them, as the terminal shows them in ``PLAIN_WIDTH`` characters."""
    file = StringIO()
    print_tables(tables, Console(file=file))
    shown = file.getvalue().splitlines()
    return "\n".join((*shown, *lines))


def format_html(tables: Iterable[TextTable], lines: Sequence[str]) -> str:
    """Return tables, and the lines below them, as HTML for a notebook; every text is escaped."""
    parts = [_format_html_table(table) for table in tables]
    return "\n".join((*parts, *(f"<p>{escape(line)}</p>" for line in lines)))


def _format_html_table(table: TextTable) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.head)
    rows = "\n".join(
        f"<tr>{''.join(f'<td>{_escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows[:MOST_HTML_ROWS]
    )
    left = len(table.rows) - MOST_HTML_ROWS
    more = f"<p>… and {left} more rows</p>" if left > 0 else ""
    title = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    legend = f"<p>{escape(table.legend)}</p>" if table.legend else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>{more}{legend}"


def _escape(cell: Text) -> str:
    return escape(spell_out("".join(part.text for part in list_parts(cell))))
