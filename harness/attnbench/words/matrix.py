"""The matrix in words: what a cell and a column lack."""

__all__ = ["EMPTY", "NO_FINDINGS", "UNFINISHED"]

EMPTY = "empty: no findings"
NO_FINDINGS = "no findings"
UNFINISHED = "{name}, not finished"
