"""Text from runs and plug-ins inside Markdown: it is shown as it is, and never read as markup.

Sources: CommonMark 0.31, https://spec.commonmark.org/0.31.2/; GitHub Flavored Markdown, https://github.github.com/gfm/
"""

import re
from collections.abc import Iterable, Sequence

from attnbench.report.hidden_characters import spell_out

__all__ = ["escape", "format_code", "format_console", "format_table", "hide_comments"]

# Marks of emphasis, code, links, HTML, entities, tables, strikethrough and formulas.
_MARKS = re.compile(r"[\\`*_\[\]<>|~&$]")
# What GitHub turns into a link although it has no marks: an address or a mail address. The escaped character breaks it.
_LINKS = re.compile(r"(?<=[A-Za-z])(?=://)|(?<=\bwww)(?=\.)|(?=@)", re.IGNORECASE)
# Start of a heading, of an item of a list, of a rule, or of the line under a heading.
_BLOCK = re.compile(r"(?=[#+=-])|(?<=\d)(?=[.)])")
# Digits before the mark of a numbered item; CommonMark reads at most nine.
_NUMBER = re.compile(r"\d{1,9}(?=[.)])")


def escape(text: str) -> str:
    """Return the text for a paragraph, an item or a cell, on one line and with its markup escaped."""
    line = " ".join(spell_out(text).split())
    line = _MARKS.sub(_put_backslash, line)
    line = _LINKS.sub(_put_backslash, line)
    number = _NUMBER.match(line)
    start = number.end() if number else 0
    return f"{line[:start]}\\{line[start:]}" if _BLOCK.match(line, start) else line


def _put_backslash(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


def format_code(text: str) -> str:
    """Return the text as code within a line, which is also valid inside a table."""
    line = " ".join(spell_out(text).split()).replace("|", "\\|")
    if not line:
        return "(empty)"
    fence = "`" * (_find_longest_run(line) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def format_console(command: str) -> str:
    """Return a command as a block of console input; further lines of the command begin with ``> ``, as in a shell."""
    lines = spell_out(command).split("\n")
    fence = "`" * max(3, _find_longest_run(command) + 1)
    return "\n".join([f"{fence}console", f"$ {lines[0]}", *(f"> {line}" for line in lines[1:]), fence])


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> str:
    """Return a table of formatted cells; the last ``numbers`` columns are aligned at the right."""
    rule = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def hide_comments(text: str) -> str:
    """Escape HTML comments at the start of lines, so that such a line is only where the report itself puts it."""
    return re.sub(r"^(?=<!--)", _put_backslash, text, flags=re.MULTILINE)


def _find_longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
