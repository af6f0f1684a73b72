"""The console, or a file in its place: its width, and the lines that are printed on it, part by part in a style."""

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TextIO
from unicodedata import combining, east_asian_width

from attnbench.report.hidden_characters import spell_out

__all__ = ["PLAIN_WIDTH", "Console", "Part", "Text", "count_cells", "list_parts", "measure_width"]

# Width in characters, if the output is not a terminal.
PLAIN_WIDTH = 100
# Parameters of the control sequence "select graphic rendition" (ECMA-48), by style.
_CODES = {"bold": 1, "dim": 2, "italic": 3, "red": 31, "green": 32, "yellow": 33}


class Part(NamedTuple):
    """A part of a line, and its style: words such as "bold red"; empty: plain."""

    text: str
    style: str = ""


Text = str | Part | Sequence[Part]


def list_parts(text: Text) -> list[Part]:
    """Return the parts of a text."""
    if isinstance(text, str):
        return [Part(text)]
    return [text] if isinstance(text, Part) else list(text)


def count_cells(text: str) -> int:
    """Return how many columns of a terminal a text takes: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(one) in "WF" else 0 if combining(one) else 1 for one in text)


def measure_width(file: TextIO) -> int:
    """Return the number of columns of a stream's terminal; the environment variable COLUMNS comes first."""
    try:
        own = os.get_terminal_size(file.fileno())
    except OSError:
        own = os.terminal_size((PLAIN_WIDTH, 24))
    # Asks standard output before it takes ``own``; both are the same terminal, unless one is none.
    return shutil.get_terminal_size(own).columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """A text stream that lines are printed to."""

    file: TextIO
    # In columns.
    width: int = PLAIN_WIDTH
    styled: bool = False

    @classmethod
    def of(cls, *, err: bool = False) -> Self:
        """Return standard output, or standard error, as wide as its terminal; styles are shown on a terminal only."""
        file = sys.stderr if err else sys.stdout
        if not file.isatty():
            return cls(file=file)
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        return cls(file=file, width=measure_width(file), styled=not plain)

    def print(self, line: Text = "") -> None:
        """Print a line as it is, however long; characters that a terminal would obey are spelled out."""
        self.file.write("".join(map(self._show, list_parts(line))) + "\n")

    def print_wrapped(self, text: str, style: str = "") -> None:
        """Print a text on as many lines as the width needs."""
        for line in textwrap.wrap(text, self.width, break_on_hyphens=False, break_long_words=False):
            self.print(Part(line, style))

    def _show(self, part: Part) -> str:
        text = spell_out(part.text)
        if not self.styled or not part.style:
            return text
        codes = ";".join(str(_CODES[word]) for word in part.style.split())
        return f"\x1b[{codes}m{text}\x1b[0m"
