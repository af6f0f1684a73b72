"""CSV files of a report, in which no cell is a formula."""

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

    A text that a spreadsheet would compute begins with an apostrophe instead; numbers stay as they are.
    """
    for start in range(0, max(len(frame), 1), ROWS):
        shown = frame[start : start + ROWS].rename(columns=_protect)
        for place, kind in enumerate(shown.dtypes):
            if not pd.api.types.is_numeric_dtype(kind):
                shown.isetitem(place, [_protect(cell) for cell in shown.iloc[:, place].tolist()])
        yield shown.to_csv(index=False, header=not start, lineterminator="\n").encode()


def _protect(cell: Any) -> Any:
    return _protect_text(cell) if isinstance(cell, str) else cell


# Names, cases and reasons repeat in thousands of rows.
@lru_cache(maxsize=1 << 16)
def _protect_text(cell: str) -> str:
    text = spell_out(cell)
    return AS_TEXT + text if text.lstrip().startswith(STARTS) else text
