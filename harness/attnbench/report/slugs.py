"""Slugs: names of files, anchors and ids that are made from text of any kind."""

import hashlib
import re

from attnbench.report.hidden_characters import spell_out

__all__ = ["make_slug"]

# Longest readable part of a slug, in characters.
LONGEST = 48
# Hexadecimal digits of the hash that keeps the slugs of different texts apart.
DIGITS = 8


def make_slug(*parts: str) -> str:
    """Return a name of lower-case ASCII letters, digits and hyphens for these texts.

    Texts that differ have different slugs: where letters or the borders of texts are lost, a hash of the texts follows
    the readable part.
    """
    text = "-".join(parts)
    readable = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST].strip("-")
    if readable == text and not any("-" in part for part in parts[1:]):
        return readable
    # A text that is spelled out never contains the separator.
    spelled = hashlib.sha256("\x00".join(map(spell_out, parts)).encode()).hexdigest()[:DIGITS]
    return f"{readable}-{spelled}" if readable else spelled
