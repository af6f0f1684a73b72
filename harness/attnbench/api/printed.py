"""Texts that the terminal and the report of ``attnbench.conform`` share."""

from collections import Counter

from attnbench.analysis.root_causes import RootCause
from attnbench.checks.catalogue import read_checks
from attnbench.records.types import Status

__all__ = ["describe_cause", "format_reasons"]

# Statuses whose reason is what happened to the call, and does not begin with the requirement.
_WITHOUT_REQUIREMENT: tuple[Status, ...] = ("error", "timeout", "crashed", "out_of_memory")
# Largest number of reasons that are all printed. Of more reasons only the most common one is printed.
_PRINTED_REASONS = 3


def describe_cause(cause: RootCause) -> list[str]:
    """Return the lines below the title of a cause: requirement and fault, the checks behind it, and the command.

    An exception that several checks have in common stands alone: no single requirement is at fault.
    """
    known = read_checks().get(cause.finding.check)
    text = cause.reason
    if known and len(cause.checks) == 1 and cause.finding.status in _WITHOUT_REQUIREMENT:
        text = f"{known.requirement} But {text.removeprefix(known.requirement).strip().removeprefix('But ')}"
    return [line for line in (text, cause.listing, cause.reproduce) if line]


def format_reasons(reasons: Counter[str]) -> str:
    """Return the reasons, each with its count; of more than three, the most common one and how many others there are.

    A single reason has no count.
    """
    (first, count), *others = reasons.most_common()
    if not others:
        return first
    if len(reasons) <= _PRINTED_REASONS:
        return "; ".join(f"{number} × {reason}" for reason, number in reasons.most_common())
    return f"{count} × {first} (and {len(others)} more reasons)"
