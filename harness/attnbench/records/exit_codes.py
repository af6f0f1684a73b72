"""Exit codes of attnbench, which the last record of a run file has too."""

__all__ = ["FAILED", "INCONCLUSIVE", "INTERRUPTED", "USAGE"]

# A check failed, or something became worse; a usage error; no verdict; an interrupt (128 and the number of SIGINT).
FAILED, USAGE, INCONCLUSIVE, INTERRUPTED = 1, 2, 3, 130
