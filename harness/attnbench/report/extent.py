"""What of an incomplete report is complete, in sentences: the checks, the times and the memory."""

from collections.abc import Iterable

from attnbench.records.types import PERF, Result
from attnbench.report.numbers import format_count

__all__ = ["describe_basis", "describe_extent"]


def describe_extent(timed: int, missing: int, results: Iterable[Result], unreached: int, *, checked: bool) -> str:
    """Return what is complete and what is not.

    ``missing``: planned calls that were not timed. ``unreached``: planned calls that were not even checked before
    timing. ``checked``: whether no check is missing.
    """
    profiled = [result for result in results if result.suite == PERF]
    measured = sum(result.memory is not None for result in profiled)
    unmeasured = unreached + sum(result.memory is None and result.untimed is None for result in profiled)
    parts = ["all checks ended" if checked else "checks are missing"]
    if timed or missing:
        parts.append(f"{timed} of {timed + missing} planned calls timed")
    if measured or unmeasured:
        parts.append(f"peak memory measured for {measured} of {measured + unmeasured}")
    return f"So far: {'; '.join(parts)}."


def describe_basis(timed: int, missing: int) -> str:
    """Return on how many timed calls the recommendations rest; ``missing``: planned calls that were not timed."""
    if not timed:
        return "This report recommends no implementation: no call was timed."
    if not missing:
        return "Every planned call was timed, but perhaps in fewer processes than planned."
    lacking = f"{format_count(missing, 'planned call')} {'is' if missing == 1 else 'are'} missing"
    return f"What to use here rests on {format_count(timed, 'timed call')} only; {lacking}."
