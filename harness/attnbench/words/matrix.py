"""The matrix in words: what its marks mean, and what a column lacks."""

from attnbench.words.say import say

__all__ = ["EMPTY", "NO_FINDINGS", "describe_kind", "title_unfinished"]

# Kinds of status, in the order of the legend.
_KINDS = {
    "good": "passed",
    "bad": "failed, stopped with an error, or passed where it was expected to fail",
    "known": "failed as expected",
    "refused": "refused, with a reason",
    "left": "not run",
}
EMPTY = "empty: no findings"
NO_FINDINGS = "no findings"
_UNFINISHED = "{name}, not finished"


def describe_kind(kind: str) -> str:
    """Return what the mark of a kind of status means."""
    return say(_KINDS[kind])


def title_unfinished(name: str) -> str:
    """Return the title of an implementation of which planned checks are missing."""
    return say(_UNFINISHED, name=name)
