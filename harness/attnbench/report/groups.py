"""Findings and calls that are not failures, grouped by implementation and reason."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from attnbench.analysis.left_out import LeftOut

__all__ = ["MOST_GROUPS", "Grouped", "group_left_out", "group_rows", "label_calls", "select_expected_failures"]

# Pattern of the start of an expected failure's reason: the declared reason, a link in parentheses, and a colon. The
# reason that the check reported follows the colon.
_DECLARED = re.compile(r"(.*? \(\S*\)): ", re.DOTALL)


# Most groups of what was left out that a page lists; left-out.csv lists all of it.
MOST_GROUPS = 200


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
        made.append(
            Grouped(
                implementation=str(name),
                reason=str(reason),
                count=len(rows),
                of=_list_first([str(value) for value in rows[column]], named),
            )
        )
    order = {name: place for place, name in enumerate(frame["implementation"].unique())}
    return tuple(sorted(made, key=lambda one: (order[one.implementation], -one.count)))


def group_left_out(left_out: Sequence[LeftOut]) -> tuple[Grouped, ...]:
    """Group what was left out by implementation and reason; at most ``MOST_GROUPS`` groups, the largest first."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in left_out:
        groups.setdefault((one.kind, one.implementation, one.reason), []).append(one.case or one.run)
    made = [
        Grouped(implementation=name, reason=f"{kind}: {reason}", count=len(of), of=_list_first(of))
        for (kind, name, reason), of in groups.items()
    ]
    return tuple(sorted(made, key=lambda one: -one.count)[:MOST_GROUPS])


def _list_first(texts: Sequence[str], named: int = 1) -> str:
    """List the first of these texts, and how many different ones follow."""
    values = list(dict.fromkeys(texts))
    more = f" and {len(values) - named} more" if len(values) > named else ""
    return ", ".join(values[:named]) + more
