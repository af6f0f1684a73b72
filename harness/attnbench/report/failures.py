"""The failures of a report, each with the command that reproduces it."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from attnbench.records.types import FAILURES, format_reproduce_line

__all__ = ["Problem", "collect_problems"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A finding whose status is a failure, with the command that reproduces the finding."""

    implementation: str
    check: str
    requirement: str
    case: str
    status: str
    reason: str
    command: str


def collect_problems(found: pd.DataFrame, requirements: dict[str, str]) -> Iterator[Problem]:
    """Yield the failures among these findings; ``requirements`` says what each check requires."""
    for row in found[found["status"].isin(FAILURES)].itertuples():
        name, case, check = str(row.implementation), str(row.case), str(row.check)
        yield Problem(
            implementation=name,
            check=check,
            requirement=requirements[check],
            case=case,
            status=str(row.status).replace("_", " "),
            reason=str(row.reason),
            command=format_reproduce_line(name, case, check),
        )
