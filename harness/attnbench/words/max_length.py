"""The table of max lengths."""

from attnbench.analysis.max_length import MaxLength
from attnbench.cases import CaseId
from attnbench.records.types import find_pass
from attnbench.words.findings import describe_finding
from attnbench.words.say import say

__all__ = ["HEAD", "format_row"]

# Column headings of a table of max lengths.
HEAD = ("implementation", "pass", "dtype", "longest", "s per call", "peak MiB", "fails at")
_FAILS = "{length}: {status}: {why}"


def format_row(found: MaxLength) -> tuple[str, ...]:
    """Format a max length as the cells of a table row, under the headings ``HEAD``."""
    dtype = CaseId.parse(found.case).dtype
    peak = "–" if found.peak_bytes is None else f"{found.peak_bytes / 2**20:.4g}"
    took = "–" if found.took_s is None else f"{found.took_s:.3g}"
    length = "–" if found.length is None else str(found.length)
    failure, beyond = found.failure, ""
    if failure is not None:
        beyond = say(_FAILS, length=found.beyond, status=failure.status, why=describe_finding(failure))
    return found.implementation, find_pass(found.case), dtype, length, took, peak, beyond
