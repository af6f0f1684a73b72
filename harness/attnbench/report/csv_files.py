"""CSV files of a report, in which no cell is a formula."""

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


def render_csv(frame: pd.DataFrame) -> bytes:
    """Return the bytes of the CSV file of a table.

    A text that a spreadsheet would compute begins with an apostrophe instead; numbers stay as they are.
    """
    shown = frame.rename(columns=_protect)
    for place, kind in enumerate(shown.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            shown.isetitem(place, [_protect(cell) for cell in shown.iloc[:, place].tolist()])
    return shown.to_csv(index=False, lineterminator="\n").encode()


def _protect(cell: Any) -> Any:
    return _protect_text(cell) if isinstance(cell, str) else cell


# Names, cases and reasons repeat in thousands of rows.
@lru_cache(maxsize=1 << 16)
def _protect_text(cell: str) -> str:
    text = spell_out(cell)
    return AS_TEXT + text if text.lstrip().startswith(STARTS) else text
