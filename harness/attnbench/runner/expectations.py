"""Expected failures: a deviation that is known, with its reason and a link; still run, and reported if it passes."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from attnbench.records import Finding
from attnbench.registry import IMPLEMENTATIONS

__all__ = ["FILE_NAME", "Expectation", "ExpectationError", "applied", "expectations_beside", "read_expectations"]

FILE_NAME = "expected_failures.toml"
KEYS = ("implementation", "check", "case", "reason", "link")


class ExpectationError(Exception):
    """A file of expected failures that cannot be used; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One deviation; ``check`` and ``case`` are shell-style patterns."""

    implementation: str
    check: str
    case: str
    reason: str
    link: str

    def covers(self, implementation: str, case: str, check: str) -> bool:
        """Whether it speaks of this finding."""
        return implementation == self.implementation and fnmatchcase(check, self.check) and fnmatchcase(case, self.case)


def read_expectations(path: Path) -> list[Expectation]:
    """Expected failures of a file: a list ``[[expected]]`` of tables with five strings each.

    Raises: ExpectationError.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("expected", [])
    except (OSError, ValueError) as error:
        raise ExpectationError(f"cannot read expected failures from {path}: {error}") from error
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ExpectationError(f"{path}: expected must be a list of tables, each under a line [[expected]]")
    for number, table in enumerate(tables, start=1):
        if sorted(table) != sorted(KEYS) or not all(isinstance(v, str) and v for v in table.values()):
            raise ExpectationError(f"{path}: entry {number} needs the strings {', '.join(KEYS)}, got {sorted(table)}")
    return [Expectation(**table) for table in tables]


def expectations_beside(names: Sequence[str]) -> list[Expectation]:
    """Expected failures that stand beside the module of any of these implementations, in ``expected_failures.toml``."""
    folders = {folder for name in names if (folder := _folder(name)) is not None}
    return [
        e for folder in sorted(folders) if (folder / FILE_NAME).is_file() for e in read_expectations(folder / FILE_NAME)
    ]


def _folder(name: str) -> Path | None:
    """Folder of the module that a name leads to, found without importing it."""
    place = name.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place).resolve().parent
    if not place:
        place = next((entry.module for entry in entry_points(group=IMPLEMENTATIONS, name=name)), "")
    try:
        spec = find_spec(place) if place else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def applied(finding: Finding, expectations: Sequence[Expectation], implementation: str, case: str) -> Finding:
    """The finding as it counts: a failure that is expected, or a pass that is not."""
    found = next((e for e in expectations if e.covers(implementation, case, finding.check)), None)
    if found is None:
        return finding
    if finding.status in ("failed", "error"):
        return replace(finding, status="expected_failure", reason=f"{found.reason} ({found.link}): {finding.reason}")
    if finding.status == "passed":
        return replace(
            finding,
            status="unexpected_pass",
            reason=f"expected to fail ({found.reason}): remove the entry, {found.link}",
        )
    return finding
