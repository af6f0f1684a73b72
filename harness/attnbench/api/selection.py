"""What is asked for: cases and checks of a suite, and deviations that are known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from attnbench.cases import LEVELS
from attnbench.checks.catalogue import checks
from attnbench.plugins.registry import operators, shown
from attnbench.runner import Expectation, Plan, Session, audit, expectations_beside, read_expectations

__all__ = ["Expected", "Selection", "expectations_for", "listed"]

# Files; or (reason, link) of each deviation, by the pattern of a check, or by those of a check and a case.
Expected = str | Path | Sequence[str | Path] | Mapping[str | tuple[str, str], tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which cases and checks are asked for; no ``cases`` and no ``checks`` are all of them."""

    suite: str = "core"
    # Shell-style patterns, or whole ids, which need not be in the suite.
    cases: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a suite or a check that is none."""
        if self.suite not in LEVELS:
            raise ValueError(f"unknown suite {self.suite!r}; available: {', '.join(LEVELS)}")
        if strange := [check for check in self.checks if check not in checks()]:
            raise ValueError(f"unknown check {strange[0]!r}; available: {', '.join(checks())}")

    def plans(self, session: Session) -> list[Plan]:
        """Cases as they will be run.

        Raises: ValueError where nothing is left to run.
        """
        listed = [case for name in operators() for case in session.judge("suite", operator=name, level=self.suite)]
        chosen = [case for pattern in self.cases for case in _matching(session, listed, pattern)]
        plans = session.plan(dict.fromkeys(chosen if self.cases else listed), frozenset(self.checks) or None)
        if not plans:
            raise ValueError(f"nothing to run: none of {', '.join(self.checks)} applies to the cases that were asked")
        return plans


def expectations_for(
    session: Session, implementations: Sequence[str], expected: Expected, plans: Sequence[Plan]
) -> list[Expectation]:
    """Expected failures that are given, and those that stand beside the implementations.

    Raises: ExpectationError where one speaks of nothing, or a file cannot be read; ValueError for a mapping that cannot
    be used.
    """
    if isinstance(expected, Mapping):
        given = [_expectation(shown(name), *entry) for name in implementations for entry in expected.items()]
    else:
        files = [expected] if isinstance(expected, str | Path) else expected
        given = [one for file in files for one in read_expectations(Path(file))]
    found = [*given, *expectations_beside(implementations)]
    if found:
        audit(session, found, implementations, [plan.case for plan in plans])
    return found


def listed(patterns: Sequence[str]) -> tuple[str, ...]:
    """Patterns, one of which may be given by itself."""
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _expectation(implementation: str, key: Any, value: Any) -> Expectation:
    check, case = key if isinstance(key, tuple) and len(key) == 2 else (key, "*")
    parts = value if isinstance(value, tuple | list) else ()
    if len(parts) != 2 or not all(isinstance(part, str) and part for part in (check, case, *parts)):
        raise ValueError(
            "expected_failures needs a (reason, link) for each check, or (check, case), that is a pattern; "
            f"got {key!r}: {value!r}"
        )
    return Expectation(implementation=implementation, check=check, case=case, reason=parts[0], link=parts[1])


def _matching(session: Session, listed: Sequence[str], pattern: str) -> list[str]:
    found = [case for case in listed if fnmatchcase(case, pattern)]
    if found:
        return found
    if not set("*?[") & set(pattern):
        fault = session.judge("parse", case=pattern).get("fault")
        if not fault:
            return [pattern]
        raise ValueError(f"{fault}; for a part of ids write '*{pattern}*'")
    raise ValueError(f"{pattern!r} matches none of {len(listed)} cases of the suite")
