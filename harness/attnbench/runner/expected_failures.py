"""Expected failures: a deviation that is known, with its reason and a link; still run, and reported if it passes."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from attnbench.checks.catalogue import checks
from attnbench.plugins.registry import IMPLEMENTATIONS, names, shown
from attnbench.records.types import Finding, Status
from attnbench.runner.session import Session

__all__ = [
    "FILE_NAME",
    "Expectation",
    "ExpectationError",
    "applied",
    "audit",
    "expectations_beside",
    "read_expectations",
]

FILE_NAME = "expected_failures.toml"
# What may be expected. A death or a time-out may not: it costs its process, and with the third one all that is left.
EXPECTED: tuple[Status, ...] = ("failed", "error")
KEYS = ("implementation", "check", "case", "reason", "link")
# Keys that an entry may have besides.
OPTIONAL = frozenset({"unless", "passes_where"})


class ExpectationError(Exception):
    """A file of expected failures that cannot be used; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One deviation; ``check``, ``case`` and ``unless`` are shell-style patterns.

    ``check`` and ``unless`` may be several, separated by blanks.
    """

    implementation: str
    check: str
    case: str
    reason: str
    link: str
    # Cases among them of which it does not speak.
    unless: str = ""
    # On what machines, or with what versions, it does not deviate: a pass is then one. Empty: nowhere.
    passes_where: str = ""
    # Where it stands: a file, and the number of the entry in it.
    file: Path | None = field(default=None, compare=False)
    entry: int = field(default=0, compare=False)

    @property
    def place(self) -> str:
        """Where it stands, without folders that could tell a host or a user."""
        return f"entry {self.entry} of {self.file.name}" if self.file else "the expectation"

    @property
    def checks(self) -> list[str]:
        """Patterns of the checks."""
        return self.check.split()

    def covers(self, implementation: str, case: str, check: str) -> bool:
        """Whether it speaks of this finding."""
        meant = fnmatchcase(case, self.case) and not any(fnmatchcase(case, one) for one in self.unless.split())
        return implementation == self.implementation and meant and any(fnmatchcase(check, one) for one in self.checks)


def read_expectations(path: Path) -> list[Expectation]:
    """Expected failures of a file: a list ``[[expected]]`` of tables with five strings each, or with optional ones.

    Raises: ExpectationError.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExpectationError(f"cannot read expected failures from {path}: {error}") from error
    if strangers := sorted(content.keys() - {"expected"}):
        raise ExpectationError(f"{path}: unknown table {strangers[0]!r}; entries stand under lines [[expected]]")
    tables = content.get("expected", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ExpectationError(f"{path}: expected must be a list of tables, each under a line [[expected]]")
    for number, table in enumerate(tables, start=1):
        if sorted(table.keys() - OPTIONAL) != sorted(KEYS) or not all(isinstance(v, str) and v for v in table.values()):
            raise ExpectationError(f"{path}: entry {number} needs the strings {', '.join(KEYS)}, got {sorted(table)}")
    return [Expectation(**table, file=path, entry=number) for number, table in enumerate(tables, start=1)]


def expectations_beside(names: Sequence[str]) -> list[Expectation]:
    """Expected failures that stand beside the module of any of these implementations, in ``expected_failures.toml``."""
    folders = {folder for name in names if (folder := _folder(name)) is not None}
    files = [folder / FILE_NAME for folder in sorted(folders) if (folder / FILE_NAME).is_file()]
    return [expectation for file in files for expectation in read_expectations(file)]


def audit(
    session: Session, expectations: Sequence[Expectation], implementations: Sequence[str], cases: Sequence[str] = ()
) -> None:
    """Check that every entry speaks of something: an implementation, a check, and a case of any suite or of ``cases``.

    Which of the cases are run this time does not matter, so that a filter makes no entry wrong.

    Raises: ExpectationError that names the first entry which can match nothing.
    """
    run = {shown(name) for name in implementations}
    for one in expectations:
        if one.implementation not in run and not _exists(one):
            known = list(dict.fromkeys([*run, *names()]))
            raise ExpectationError(
                f"{_where(one)}: no implementation {one.implementation!r}{_hint(one.implementation, known)}"
            )
        for pattern in one.checks:
            if not any(fnmatchcase(check, pattern) for check in checks()):
                raise ExpectationError(f"{_where(one)}: no check {pattern!r}{_hint(pattern, list(checks()))}")
    spoken = [(one, pattern) for one in expectations for pattern in one.checks]
    idle = session.judge(
        "idle", patterns=[[pattern, one.case, one.unless] for one, pattern in spoken], cases=list(cases)
    )
    for (one, pattern), matches_nothing in zip(spoken, idle, strict=True):
        if matches_nothing:
            raise ExpectationError(
                f"{_where(one)}: {pattern!r} applies to no case of any suite whose id matches {one.case!r}"
                + (f" and none of {one.unless!r}" if one.unless else "")
            )


def _where(one: Expectation) -> str:
    return f"{one.file} entry {one.entry}" if one.file else f"expected failure of {one.implementation}"


def _hint(word: str, known: Sequence[str]) -> str:
    near = get_close_matches(word, known, n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else "; remove the entry, or correct it"


def _exists(one: Expectation) -> bool:
    """Whether the implementation of an entry is registered, or is a word of the module that its name leads to."""
    place, _, attribute = one.implementation.rpartition(":")
    if not place:
        return attribute in names()
    found = _module(one.implementation)
    beside = one.file.parent / place if one.file and place.endswith(".py") else None
    source = next((path for path in (found, beside) if path is not None and path.is_file()), None)
    return source is not None and bool(
        re.search(rf"\b{re.escape(attribute)}\b", source.read_text(encoding="utf-8", errors="replace"))
    )


def _folder(name: str) -> Path | None:
    module = _module(name)
    return module.parent if module else None


def _module(name: str) -> Path | None:
    """File of the module that a name leads to, found without importing it."""
    place = name.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place).resolve()
    if not place:
        place = next((entry.module for entry in entry_points(group=IMPLEMENTATIONS, name=name)), "")
    try:
        spec = find_spec(place) if place else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin else None


def applied(finding: Finding, expectations: Sequence[Expectation], implementation: str, case: str) -> Finding:
    """The finding as it counts: a failure that is expected, or a pass that is not."""
    found = next((e for e in expectations if e.covers(implementation, case, finding.check)), None)
    if found is None:
        return finding
    if finding.status in EXPECTED:
        return replace(finding, status="expected_failure", reason=f"{found.reason} ({found.link}): {finding.reason}")
    if finding.status == "passed" and not found.passes_where:
        return replace(
            finding,
            status="unexpected_pass",
            reason=f"expected to fail ({found.reason}, {found.link}): remove {found.place}, or narrow it by unless",
        )
    return finding
