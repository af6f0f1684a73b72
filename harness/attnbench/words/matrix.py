"""The matrix in words: what a cell and a column lack."""

from attnbench.words.say import say

__all__ = ["EMPTY", "NO_FINDINGS", "title_unfinished"]

EMPTY = "empty: no findings"
NO_FINDINGS = "no findings"
_UNFINISHED = "{name}, not finished"


def title_unfinished(name: str) -> str:
    """Return the title of an implementation of which planned checks are missing."""
    return say(_UNFINISHED, name=name)
