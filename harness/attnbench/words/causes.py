"""What caused the failures of an implementation: a few words for a table, and lines below a failure on a terminal."""

from attnbench.analysis.deviations import find_facts
from attnbench.analysis.diagnoses import looks_like_fault
from attnbench.analysis.root_causes import RootCause
from attnbench.checks.catalogue import read_checks
from attnbench.records.types import Status

__all__ = ["describe_cause", "name_cause"]

# Statuses whose reason says what happened to the call. Such a reason does not begin with the requirement.
_WITHOUT_REQUIREMENT: tuple[Status, ...] = ("error", "timeout", "crashed", "out_of_memory")


def name_cause(cause: RootCause) -> str:
    """Return what is wrong in a few words, such as "the softmax scale is off by +9.62 %"; else the failed check."""
    text = ""
    if cause.kind == "deviation":
        text = find_facts(cause.shared)
    elif cause.kind == "diagnosis":
        text = f"looks like {cause.name}" if looks_like_fault(cause.finding.reason) else cause.name
    elif cause.kind in ("scale", "leak"):
        text = cause.name
    elif cause.kind == "exception" and len(cause.checks) > 1:
        text = cause.shared
    text = " ".join(text.split()).removesuffix(".")
    return text or (next(iter(cause.checks)) if len(cause.checks) == 1 else f"{len(cause.checks)} checks, one cause")


def describe_cause(cause: RootCause) -> list[str]:
    """Return the lines below the title of a cause: requirement and fault, the checks, and the command to reproduce it.

    If several checks have the same exception, no requirement is printed, because the exception belongs to none of them.
    """
    known = read_checks().get(cause.finding.check)
    text = cause.reason
    if known and len(cause.checks) == 1 and cause.finding.status in _WITHOUT_REQUIREMENT:
        text = f"{known.requirement} But {text.removeprefix(known.requirement).strip().removeprefix('But ')}"
    return [line for line in (text, cause.listing, cause.reproduce) if line]
