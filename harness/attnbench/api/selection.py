"""The cases and checks that a user selects from a suite, and the failures that the user expects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from attnbench.analysis.coverage import VERDICT_SUITES
from attnbench.cases import LEVELS, Level
from attnbench.checks.catalogue import read_checks
from attnbench.plugins.registry import display_name, list_operators
from attnbench.processes.oracle_requests import CheckCase, ListSuite
from attnbench.runner import Expectation, Plan, Session, audit, read_expectations, read_expectations_beside
from attnbench.runner.supplement import Supplement, choose_supplements

__all__ = ["Expected", "Selection", "as_tuple", "collect_expectations", "supplement_selection"]

# Expected failures: one or more files, or a mapping. A key of the mapping is a pattern of check names, or a pair
# (pattern of check names, pattern of case ids). A value of the mapping is a pair (reason, link).
Expected = str | Path | Sequence[str | Path] | Mapping[str | tuple[str, str], tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selected cases and checks of a suite; empty ``cases`` selects all cases, empty ``checks`` all checks."""

    suite: str = "core"
    # Shell-style patterns of case ids, or whole case ids; a whole id need not be in the suite.
    cases: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every case of the suite is selected, with every check."""
        return not (self.cases or self.checks)

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown suite or check."""
        if self.suite not in LEVELS:
            raise ValueError(f"unknown suite {self.suite!r}; available: {', '.join(LEVELS)}")
        if unknown := [check for check in self.checks if check not in read_checks()]:
            raise ValueError(f"unknown check {unknown[0]!r}; available: {', '.join(read_checks())}")

    def make_plans(self, session: Session) -> list[Plan]:
        """Return one plan for each selected case, with the selected checks that apply to the case.

        Raises: ValueError if a pattern matches no case, or no selected check applies to any
        selected case.
        """
        level = cast("Level", self.suite)  # __post_init__ has checked that the suite exists
        listed = [
            case for name in list_operators() for case in session.ask_oracle(ListSuite(operator=name, level=level))
        ]
        chosen = [case for pattern in self.cases for case in _match_cases(session, listed, pattern)]
        plans = session.plan(dict.fromkeys(chosen if self.cases else listed), frozenset(self.checks) or None)
        if not plans:
            raise ValueError(f"nothing to run: none of {', '.join(self.checks)} applies to the selected cases")
        return plans


def supplement_selection(
    session: Session, implementations: Sequence[str], selection: Selection, plans: Sequence[Plan], *, adds: bool
) -> dict[str, Supplement]:
    """Return the declarations of each implementation about the selected suite, and its supplementary cases.

    Return an empty mapping unless a whole suite of ``VERDICT_SUITES`` is selected. Without ``adds`` there are no
    supplementary cases.

    Raises: PluginError where an implementation cannot be loaded.
    """
    suite = cast("Level", selection.suite)
    if not selection.whole or suite not in VERDICT_SUITES:
        return {}
    return choose_supplements(session, implementations, plans, suite=suite, adds=adds)


def collect_expectations(
    session: Session, implementations: Sequence[str], expected: Expected, plans: Sequence[Plan]
) -> list[Expectation]:
    """Return the expected failures in ``expected`` and in the files beside the implementations.

    Such a file is named ``expected_failures.toml`` and is in the folder of the implementation's
    module.

    Raises: ExpectationError if an entry for an implementation of the run can match no finding, or a file cannot be
    read; ValueError if ``expected`` is a mapping with an invalid key or value.
    """
    if isinstance(expected, Mapping):
        entries = expected.items()
        given = [_make_expectation(display_name(name), *entry) for name in implementations for entry in entries]
    else:
        files = [expected] if isinstance(expected, str | Path) else expected
        given = [one for file in files for one in read_expectations(Path(file))]
    found = [*given, *read_expectations_beside(implementations)]
    if found:
        audit(session, found, implementations, [plan.case for plan in plans])
    return found


def as_tuple(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns as a tuple; a single string is one pattern."""
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _make_expectation(implementation: str, key: Any, value: Any) -> Expectation:
    check, case = key if isinstance(key, tuple) and len(key) == 2 else (key, "*")
    parts = value if isinstance(value, tuple | list) else ()
    if len(parts) != 2 or not all(isinstance(part, str) and part for part in (check, case, *parts)):
        raise ValueError(
            "expected_failures must map a pattern of check names, or a pair (pattern of check names, pattern of case "
            f"ids), to a pair (reason, link); every string must be non-empty; got {key!r}: {value!r}"
        )
    return Expectation(implementation=implementation, check=check, case=case, reason=parts[0], link=parts[1])


def _match_cases(session: Session, listed: Sequence[str], pattern: str) -> list[str]:
    found = [case for case in listed if fnmatchcase(case, pattern)]
    if found:
        return found
    if not set("*?[") & set(pattern):
        fault = session.ask_oracle(CheckCase(case=pattern))
        if fault is None:
            return [pattern]
        raise ValueError(f"{fault.reason}; to match part of an id, write '*{pattern}*'")
    raise ValueError(f"{pattern!r} matches none of {len(listed)} cases of the suite")
