"""Titles and notes of the tables of reasons: refusals, checks that did not run, calls that were not timed."""

from collections.abc import Mapping
from typing import Literal

__all__ = ["KINDS", "Kind"]

Kind = Literal["expected_failure", "unsupported", "not_run", "warning", "untimed", "exclusion"]
# The title and a note of each table.
KINDS: Mapping[Kind, tuple[str, str]] = {
    "expected_failure": (
        "Expected failures",
        "Known deviations. Each is still checked, and the run fails if its check passes.",
    ),
    "unsupported": ("Refused", "Cases that the implementation declares unsupported. A refusal never counts as passed."),
    "not_run": ("Not run", "Checks that did not run, and why."),
    "warning": ("Warnings", "Findings of any status with a warning."),
    "untimed": ("Not timed", "Planned calls without a time, and why."),
    "exclusion": ("Left out", "What cannot be right; no number uses it. left-out.csv has all of it."),
}
