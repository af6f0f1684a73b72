"""Texts that the terminal and the report of ``attnbench.conform`` share."""

from collections import Counter

from attnbench.analysis.root_causes import RootCause
from attnbench.checks.catalogue import read_checks
from attnbench.records.types import Status

__all__ = ["describe_cause", "format_reasons"]

# Statuses whose reason says what happened to the call. Such a reason does not begin with the requirement.
_WITHOUT_REQUIREMENT: tuple[Status, ...] = ("error", "timeout", "crashed", "out_of_memory")
# Up to this number, all reasons are printed. If there are more, only the most common reason is printed.
_PRINTED_REASONS = 3


def describe_cause(cause: RootCause) -> list[str]:
    """Return the lines below the title of a cause: requirement and fault, the checks, and the command to reproduce it.

    If several checks have the same exception, no requirement is printed, because the exception belongs to none of them.
    """
    known = read_checks().get(cause.finding.check)
    text = cause.reason
    if known and len(cause.checks) == 1 and cause.finding.status in _WITHOUT_REQUIREMENT:
        text = f"{known.requirement} But {text.removeprefix(known.requirement).strip().removeprefix('But ')}"
    return [line for line in (text, cause.listing, cause.reproduce) if line]


def format_reasons(reasons: Counter[str]) -> str:
    """Return the reasons, each with its count; a single reason has no count.

    If there are more than ``_PRINTED_REASONS``, return the most common reason, and the number of other reasons.
    """
    (first, count), *others = reasons.most_common()
    if not others:
        return first
    if len(reasons) <= _PRINTED_REASONS:
        return "; ".join(f"{number} × {reason}" for reason, number in reasons.most_common())
    return f"{count} × {first} (and {len(others)} more reasons)"
