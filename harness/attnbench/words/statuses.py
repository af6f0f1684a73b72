"""The marks of the statuses of findings, on the terminal and on the page, with what they mean."""

from dataclasses import dataclass

from attnbench.records.types import FAILURES, Status
from attnbench.words.say import say

__all__ = ["MARKS", "StatusMark", "describe_mark", "find_mark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusMark:
    """Statuses that are counted together; ``name`` chooses the colour."""

    name: str
    sign: str
    meaning: str
    statuses: frozenset[Status]


# Every status has one mark. A cell of a table has its marks in this order.
MARKS = (
    StatusMark(name="bad", sign="✗", meaning="failed", statuses=FAILURES),
    StatusMark(name="good", sign="✓", meaning="passed", statuses=frozenset({"passed"})),
    StatusMark(name="known", sign="~", meaning="expected to fail", statuses=frozenset({"expected_failure"})),
    StatusMark(name="refused", sign="–", meaning="refused, with a reason", statuses=frozenset({"unsupported"})),
    StatusMark(name="left", sign="·", meaning="not run", statuses=frozenset({"not_run"})),
)
_BY_STATUS = {status: mark for mark in MARKS for status in mark.statuses}


def find_mark(status: Status) -> StatusMark:
    """Return the mark of a status."""
    return _BY_STATUS[status]


def describe_mark(mark: StatusMark) -> str:
    """Return what a mark means."""
    return say(mark.meaning)
