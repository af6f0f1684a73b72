"""The matrix in words: what its marks mean, and what a column lacks."""

__all__ = ["EMPTY", "KINDS", "NO_FINDINGS", "UNFINISHED"]

# Kinds of status, in the order of the legend.
KINDS = {
    "good": "passed",
    "bad": "failed, stopped with an error, or passed where it was expected to fail",
    "known": "failed as expected",
    "refused": "refused, with a reason",
    "left": "not run",
}
EMPTY = "empty: no findings"
NO_FINDINGS = "no findings"
UNFINISHED = "{name}, not finished"
