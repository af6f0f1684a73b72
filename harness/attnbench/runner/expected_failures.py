"""Expected failures: known deviations, each with a reason and a link. Their checks still run; passes are reported."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

from attnbench.checks.catalogue import read_checks
from attnbench.plugins.registry import IMPLEMENTATIONS, display_name, find_entry_points, list_names
from attnbench.processes.oracle_requests import FindIdle
from attnbench.records.outcome_facts import ExpectedToFail, PassedUnexpectedly
from attnbench.records.types import Finding, Status
from attnbench.runner.session import Session

__all__ = [
    "FILE_NAME",
    "Expectation",
    "ExpectationError",
    "apply_expectations",
    "audit",
    "read_expectations",
    "read_expectations_beside",
]

FILE_NAME = "expected_failures.toml"
# Statuses that count as expected failures. A crash or a time-out does not count, since it ends the worker's
# process: after three crashes or time-outs, the remaining cases are not run.
EXPECTED: tuple[Status, ...] = ("failed", "error")
KEYS = ("implementation", "check", "case", "reason", "link")
# Optional keys of an entry; an entry is one table ``[[expected]]`` of the file.
OPTIONAL = frozenset({"unless", "passes_where"})


class ExpectationError(Exception):
    """Raised if expected failures cannot be read, or cannot match any finding. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One known deviation; ``check``, ``case`` and ``unless`` are shell-style patterns.

    ``check`` and ``unless`` may contain several patterns, separated by spaces.
    """

    implementation: str
    check: str
    case: str
    reason: str
    link: str
    # Patterns of cases that are excluded although they match ``case``.
    unless: str = ""
    # Machines or versions on which the check passes, in words. If this field is set, a pass counts as ``passed``. If it
    # is empty, the check is expected to fail everywhere, and a pass is an unexpected pass.
    passes_where: str = ""
    # ``file``: file that contains the entry, if any. ``entry``: number of the entry in this file, from 1.
    file: Path | None = field(default=None, compare=False)
    entry: int = field(default=0, compare=False)

    @property
    def place(self) -> str:
        """The entry's number and file name, without folders, which could reveal a host or a user."""
        return f"entry {self.entry} of {self.file.name}" if self.file else "the entry"

    @property
    def checks(self) -> list[str]:
        """Patterns of the checks."""
        return self.check.split()

    def covers(self, implementation: str, case: str, check: str) -> bool:
        """Whether the entry applies to this finding."""
        matches = fnmatchcase(case, self.case) and not any(fnmatchcase(case, one) for one in self.unless.split())
        return implementation == self.implementation and matches and any(fnmatchcase(check, one) for one in self.checks)


def read_expectations(path: Path) -> list[Expectation]:
    """Return the expected failures in a TOML file: tables ``[[expected]]`` of strings, with the keys ``KEYS``.

    Raises: ExpectationError where the file cannot be read, or where a table or a key is wrong.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExpectationError(f"cannot read expected failures from {path}: {error}") from error
    if strangers := sorted(content.keys() - {"expected"}):
        raise ExpectationError(f"{path}: unknown table {strangers[0]!r}; write each entry under a line [[expected]]")
    tables = content.get("expected", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ExpectationError(f"{path}: 'expected' must be a list of tables, each under a line [[expected]]")
    for number, table in enumerate(tables, start=1):
        if sorted(table.keys() - OPTIONAL) != sorted(KEYS) or not all(isinstance(v, str) and v for v in table.values()):
            raise ExpectationError(
                f"{path}: entry {number} needs non-empty strings under the keys {', '.join(KEYS)} "
                f"(optional: {', '.join(sorted(OPTIONAL))}), got the keys {', '.join(sorted(table))}"
            )
    return [Expectation(**table, file=path, entry=number) for number, table in enumerate(tables, start=1)]


def read_expectations_beside(names: Sequence[str]) -> list[Expectation]:
    """Return the expected failures in the files ``expected_failures.toml`` beside the implementations' modules."""
    folders = {folder for name in names if (folder := _find_folder(name)) is not None}
    files = [folder / FILE_NAME for folder in sorted(folders) if (folder / FILE_NAME).is_file()]
    return [expectation for file in files for expectation in read_expectations(file)]


def audit(
    session: Session, expectations: Sequence[Expectation], implementations: Sequence[str], cases: Sequence[str] = ()
) -> None:
    """Check that every expected failure of ``implementations`` can match a finding.

    It may match on a case of any suite, or on one of ``cases``. It need not match a case that this run selects, so a
    filter of cases never makes an expected failure invalid. Of the other implementations, only names and checks are
    looked up.

    Raises: ExpectationError, which names the first expected failure that can match no finding.
    """
    run = {display_name(name) for name in implementations}
    for one in expectations:
        if one.implementation not in run and not _implementation_exists(one):
            known = list(dict.fromkeys([*run, *list_names()]))
            raise ExpectationError(
                f"{_describe_entry(one)}: no implementation {one.implementation!r}{_suggest(one.implementation, known)}"
            )
        for pattern in one.checks:
            if not any(fnmatchcase(check, pattern) for check in read_checks()):
                hint = _suggest(pattern, list(read_checks()))
                raise ExpectationError(f"{_describe_entry(one)}: no check {pattern!r}{hint}")
    entries = [(one, pattern) for one in expectations if one.implementation in run for pattern in one.checks]
    if not entries:
        return
    idle = session.ask_oracle(
        FindIdle(patterns=[(pattern, one.case, one.unless) for one, pattern in entries], cases=list(cases))
    )
    for (one, pattern), matches_nothing in zip(entries, idle, strict=True):
        if matches_nothing:
            excluded = f" and does not match {one.unless!r}" if one.unless else ""
            raise ExpectationError(
                f"{_describe_entry(one)}: among the cases of all suites, no check that matches {pattern!r} applies "
                f"to a case whose id matches {one.case!r}{excluded}; remove the entry, or correct it"
            )


def _describe_entry(one: Expectation) -> str:
    return f"{one.file} entry {one.entry}" if one.file else f"expected failure of {one.implementation}"


def _suggest(word: str, known: Sequence[str]) -> str:
    near = get_close_matches(word, known, n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else "; remove the entry, or correct it"


def _implementation_exists(one: Expectation) -> bool:
    """Whether an entry names an implementation that is registered, or that occurs in the source of a module.

    The name of an implementation that is not registered is ``module:attribute`` or ``file.py:attribute``. The word
    ``attribute`` must occur in the source of this module or file.
    """
    place, _, attribute = one.implementation.rpartition(":")
    if not place:
        return attribute in list_names()
    found = _find_module_file(one.implementation)
    beside = one.file.parent / place if one.file and place.endswith(".py") else None
    source = next((path for path in (found, beside) if path is not None and path.is_file()), None)
    return source is not None and bool(
        re.search(rf"\b{re.escape(attribute)}\b", source.read_text(encoding="utf-8", errors="replace"))
    )


def _find_folder(name: str) -> Path | None:
    module = _find_module_file(name)
    return module.parent if module else None


def _find_module_file(name: str) -> Path | None:
    """Return the file of the module that an implementation's name refers to; None if the module is not found.

    The module is not imported.
    """
    place = name.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place).resolve()
    if not place:
        place = next((entry.module for entry in find_entry_points(IMPLEMENTATIONS).select(name=name)), "")
    try:
        spec = find_spec(place) if place else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin else None


def apply_expectations(
    finding: Finding, expectations: Sequence[Expectation], implementation: str, case: str
) -> Finding:
    """Return the finding, with another status if an entry of ``expectations`` covers it.

    A status in ``EXPECTED`` becomes ``expected_failure``. The status ``passed`` becomes ``unexpected_pass``, unless the
    entry says where the check passes.
    """
    found = next((e for e in expectations if e.covers(implementation, case, finding.check)), None)
    if found is None:
        return finding
    if finding.status in EXPECTED:
        expected = ExpectedToFail(reason=found.reason, link=found.link)
        return replace(finding, status="expected_failure", facts=(expected, *finding.facts))
    if finding.status == "passed" and not found.passes_where:
        passed = PassedUnexpectedly(
            reason=found.reason, link=found.link, file=found.file.name if found.file else "", entry=found.entry
        )
        return replace(finding, status="unexpected_pass", facts=(passed,))
    return finding
