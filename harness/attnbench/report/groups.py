"""Findings and calls that are not failures, grouped by implementation and reason."""

import re
from dataclasses import dataclass

import pandas as pd

__all__ = ["Grouped", "group_rows", "label_calls", "select_expected_failures"]

# Pattern of the start of an expected failure's reason: the declared reason, a link in parentheses, and a colon. The
# reason that the check reported follows the colon.
_DECLARED = re.compile(r"(.*? \(\S*\)): ", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Findings or calls of one implementation with the same reason; ``of`` lists their first checks, cases or calls."""

    implementation: str
    reason: str
    count: int
    of: str


def select_expected_failures(found: pd.DataFrame) -> pd.DataFrame:
    """Return the expected failures among these findings, with only the declared reason in the column ``reason``."""
    expected = found[found["status"] == "expected_failure"]
    declared = [match[1] if (match := _DECLARED.match(str(reason))) else str(reason) for reason in expected["reason"]]
    return expected.assign(reason=declared)


def label_calls(frame: pd.DataFrame) -> pd.DataFrame:
    """Add a column ``of`` that describes each call by its pass and its length."""
    return frame.assign(of=frame["pass"] + " L = " + frame["length"].astype(str))


def group_rows(frame: pd.DataFrame, column: str, *, named: int = 3) -> tuple[Grouped, ...]:
    """Group rows by implementation and reason; the most frequent reasons of an implementation come first.

    The field ``of`` of a group is a text that lists up to ``named`` different values of ``column``.
    """
    made = []
    for (name, reason), rows in frame.groupby(["implementation", "reason"], sort=False):
        values = list(dict.fromkeys(rows[column]))
        more = f" and {len(values) - named} more" if len(values) > named else ""
        made.append(
            Grouped(
                implementation=str(name),
                reason=str(reason),
                count=len(rows),
                of=", ".join(map(str, values[:named])) + more,
            )
        )
    order = {name: place for place, name in enumerate(frame["implementation"].unique())}
    return tuple(sorted(made, key=lambda one: (order[one.implementation], -one.count)))
