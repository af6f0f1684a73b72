"""CSV files of a report, in which no cell is a formula."""

import csv
import io
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pandas as pd

from attnbench.report.spelled import spell_out

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

    A text that a spreadsheet would compute begins with an apostrophe instead; numbers stay as they are. A value that is
    missing leaves its cell empty.
    """
    # The standard library writes a table of strings and numbers in about three quarters of the time that pandas takes.
    for start in range(0, max(len(frame), 1), ROWS):
        part = io.StringIO()
        writer = csv.writer(part, lineterminator="\n")
        if not start:
            writer.writerow(map(_protect, map(str, frame.columns)))
        shown = frame[start : start + ROWS]
        writer.writerows(zip(*(_list_cells(shown.iloc[:, place]) for place in range(shown.shape[1])), strict=True))
        yield part.getvalue().encode()


def _list_cells(column: pd.Series) -> list[Any]:
    cells: list[Any] = column.tolist()
    if not pd.api.types.is_numeric_dtype(column.dtype):
        cells = [_protect(cell) if isinstance(cell, str) else cell for cell in cells]
    if column.hasnans:
        cells = ["" if lacks else cell for cell, lacks in zip(cells, column.isna().tolist(), strict=True)]
    return cells


# Names, cases and reasons repeat in thousands of rows.
@lru_cache(maxsize=1 << 16)
def _protect(cell: str) -> str:
    text = spell_out(cell)
    return AS_TEXT + text if text.lstrip().startswith(STARTS) else text
