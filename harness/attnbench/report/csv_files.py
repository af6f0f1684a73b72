"""CSV files of a report, in which no cell is a formula."""

import csv
import io
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import Any

import pandas as pd

from attnbench.report.hidden_characters import spell_out

__all__ = ["render_csv"]

# Spreadsheets compute a cell that begins with one of these characters, also after blanks and in full width.
# Source: https://owasp.org/www-community/attacks/CSV_Injection
STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
# A spreadsheet shows a cell with this first character as text, and hides the character.
AS_TEXT = "'"
# Number of rows of a part of a file. A row of timings.csv has 0.7 kB; a part is in memory several times.
ROWS = 20_000


def render_csv(frame: pd.DataFrame) -> Iterator[bytes]:
    """Yield the bytes of the CSV file of a table, part by part.

    The table has at least two columns: a row of one empty cell would be an empty line, which readers skip.

    A text that a spreadsheet would compute begins with an apostrophe instead; numbers stay as they are. A value that is
    missing leaves its cell empty.
    """
    for start in range(0, max(len(frame), 1), ROWS):
        shown = frame[start : start + ROWS]
        rows = zip(*(_list_cells(shown.iloc[:, place]) for place in range(shown.shape[1])), strict=True)
        head = [map(_encode, map(str, frame.columns))] if not start else []
        yield "".join(f"{','.join(row)}\n" for row in chain(head, rows)).encode()


def _list_cells(column: pd.Series) -> list[str]:
    """Return the cells of a column as they are written."""
    cells: list[Any] = column.tolist()
    if pd.api.types.is_numeric_dtype(column.dtype):
        written = list(map(str, cells))
    else:
        written = [_encode(cell) if isinstance(cell, str) else _encode_other(cell) for cell in cells]
    if column.hasnans:
        written = ["" if lacks else cell for cell, lacks in zip(written, column.isna().tolist(), strict=True)]
    return written


# Names, cases and reasons repeat in thousands of rows; the standard library's writer looks at each character each time.
@lru_cache(maxsize=1 << 16)
def _encode(cell: str) -> str:
    """Return a text as a cell, with an apostrophe before what a spreadsheet would compute, and in quotes if needed."""
    text = spell_out(cell)
    return _quote(AS_TEXT + text if text.lstrip().startswith(STARTS) else text)


def _encode_other(cell: Any) -> str:
    """Return a value that is no text as a cell; one that is missing is empty."""
    return "" if cell is None else _quote(str(cell))


def _quote(text: str) -> str:
    written = io.StringIO()
    # A row of one empty cell would be written as two quotation marks.
    csv.writer(written, lineterminator="\n").writerow([text, ""])
    return written.getvalue().removesuffix(",\n")
