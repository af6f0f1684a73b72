"""Names from run files, as they stand in a sentence on a page or a terminal."""

import unicodedata

__all__ = ["clean_name"]

# Longest name in a sentence, in characters. The longest name of a built-in implementation has 25.
LONGEST = 60


def clean_name(name: str, longest: int = LONGEST) -> str:
    """Return a name in one line of at most ``longest`` characters, without control characters or marks of direction.

    A run file may contain anything: a terminal would obey an escape sequence, and a mark of direction would turn the
    rest of the sentence around. Each such character is replaced by U+FFFD.
    """
    start = " ".join(name[: 2 * longest].split())
    shown = "".join("\ufffd" if unicodedata.category(mark).startswith("C") else mark for mark in start)
    if len(shown) > longest or len(name) > 2 * longest:
        shown = shown[: longest - 1] + "…"
    return shown or "(no name)"
