"""Names as figures draw them: one line, without characters that cannot be seen or written, and not too long."""

import unicodedata
from collections.abc import Iterable, Sequence

from attnbench.analysis.plain_names import clean_name

__all__ = ["clean", "make_labels", "measure_width", "wrap"]

# Longest name of an implementation in a figure, in characters.
LONGEST = 28
# ``NARROW``, ``WIDE``: characters of DejaVu Sans that are narrower or wider than most. ``WIDTHS``: widths of
# narrow, other and wide characters, in units of the font size, rounded up. Other sans-serif fonts are narrower.
NARROW, WIDE, WIDTHS = frozenset("fijltI.,:;'|!()[]/ "), frozenset("mwMWQO@%"), (0.4, 0.64, 1.0)


def clean(text: str, longest: int = LONGEST) -> str:
    """Return the text in one line of at most ``longest`` characters; … takes the place of the middle that is cut."""
    line = clean_name(text, len(text) + 1)
    if len(line) > longest:
        tail = (longest - 1) // 2
        line = f"{line[: longest - 1 - tail]}…{line[len(line) - tail :]}"
    return line


def make_labels(names: Iterable[str]) -> dict[str, str]:
    """Return a label for each name; labels that would be alike are numbered."""
    labels: dict[str, str] = {}
    taken: dict[str, int] = {}
    for name in names:
        label = clean(name)
        taken[label] = taken.get(label, 0) + 1
        labels[name] = label if taken[label] == 1 else f"{label} ({taken[label]})"
    return labels


def measure_width(texts: Iterable[str], size: float) -> float:
    """Return an upper bound of the width of the widest of these lines, in inches, at a font size in points."""
    return max((sum(map(_measure_character, text)) for text in texts), default=0.0) * size / 72


def _measure_character(character: str) -> float:
    if character in NARROW:
        return WIDTHS[0]
    broad = character in WIDE or unicodedata.east_asian_width(character) in "WF"
    return WIDTHS[2] if broad else WIDTHS[1] + 0.1 * character.isupper()


def wrap(text: str, width: float, size: float) -> Sequence[str]:
    """Break a text at spaces into lines of at most ``width`` inches; a longer word keeps a line of its own."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and measure_width([longer], size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
