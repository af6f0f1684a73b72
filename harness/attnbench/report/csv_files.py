"""CSV files of a report, in which no cell is a formula."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from attnbench.report.columns import CellValue
from attnbench.report.hidden_characters import spell_out

__all__ = ["render_csv"]

# Spreadsheets compute a cell that begins with one of these characters, also after blanks and in full width.
# Source: https://owasp.org/www-community/attacks/CSV_Injection
STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
# A spreadsheet shows a cell with this first character as text, and hides the character.
AS_TEXT = "'"


def render_csv(head: Sequence[str], rows: Iterable[Sequence[CellValue]]) -> Iterator[bytes]:
    """Yield the lines of a CSV file.

    The table has at least two columns: a row of one empty cell would be an empty line, which readers skip.

    A text that a spreadsheet would compute begins with an apostrophe instead; numbers stay as they are. A value that is
    missing, which is None or NaN, leaves its cell empty.
    """
    yield _render_line(head)
    yield from map(_render_line, rows)


def _render_line(cells: Iterable[CellValue]) -> bytes:
    return f"{','.join(map(_render_cell, cells))}\n".encode()


def _render_cell(cell: CellValue) -> str:
    if isinstance(cell, str):
        return _encode(cell)
    return "" if cell is None or cell != cell else str(cell)


# Names, cases and reasons repeat in thousands of rows; the standard library's writer looks at each character each time.
@lru_cache(maxsize=1 << 16)
def _encode(cell: str) -> str:
    """Return a text as a cell, with an apostrophe before what a spreadsheet would compute, and in quotes if needed."""
    text, written = spell_out(cell), io.StringIO()
    # A row of one empty cell would be written as two quotation marks.
    csv.writer(written, lineterminator="\n").writerow([AS_TEXT * text.lstrip().startswith(STARTS) + text, ""])
    return written.getvalue().removesuffix(",\n")
