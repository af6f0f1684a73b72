r"""Spells out the characters of stored text that no file of a report may hold, or that change the order of others.

A null byte makes an SVG file unreadable, a lone surrogate has no bytes in UTF-8, and a mark of writing direction may
show the words around it reversed. Each of them is shown as its escape in Python, such as ``\x00`` or ``\u202e``.
Records keep their texts: each output form spells out what it writes.
"""

import re

__all__ = ["spell_out"]

# Control characters except the line feed, marks of writing direction (UAX #9), line and paragraph separators, the
# byte-order mark, lone surrogates, and the code points that Unicode defines as no characters (U+FFFE, U+FFFF).
_HIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)


def spell_out(text: str) -> str:
    """Return the text with an escape for each hidden character; line breaks become line feeds, and tabs spaces."""
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(_escape, text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " "))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")
