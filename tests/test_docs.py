"""Tests that the numbers and names in the documents agree with the code."""

from collections import Counter
from pathlib import Path

from attnbench.cases import NESTED
from attnbench.checks.catalogue import read_checks
from attnbench.mutants.multihead import MUTANTS
from attnbench.operators.attention_core import OPERATOR as CORE
from attnbench.operators.multihead import OPERATOR
from attnbench.plugins.registry import list_names
from attnbench.records.types import STATUSES
from registered_mutants import MUTANT_SETS

ROOT = Path(__file__).parent.parent


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_conformance_lists_every_check_with_its_requirement() -> None:
    """docs/conformance.md has one row for every check, in the catalogue's words, and no further row."""
    named = Counter(mutant.caught_by for mutants in MUTANT_SETS.values() for mutant in mutants.mutants)
    rows = [f"| {c.chapter} | `{c.name}` | {c.requirement} | {named[c.name]} |" for c in read_checks().values()]
    written = [line for line in _read("docs/conformance.md").splitlines() if line.startswith("| ") and "`" in line]
    assert written == rows


def test_conformance_counts_mutants_and_cases() -> None:
    """docs/conformance.md gives the numbers of mutants, of correct variants and of cases of ``multihead``."""
    text = _read("docs/conformance.md")
    assert f"{len(MUTANTS.mutants)} of them" in text
    assert f"{len(MUTANTS.equivalents)} more changes" in text
    assert f"are {len(MUTANTS.variants)} correct implementations" in text
    assert f"({', '.join(str(len(OPERATOR.suite(level))) for level in NESTED)} cases)" in text
    further = {name: len(OPERATOR.suite(name)) for name in ("gpu", "huge")}
    assert " and ".join(f"`{name}` ({count} cases)" for name, count in further.items()) in text


def test_conformance_counts_mutants_and_cases_of_the_kernel_scope() -> None:
    """docs/conformance.md gives the numbers of mutants, of correct variants and of cases of ``attention_core``."""
    text, core = _read("docs/conformance.md"), MUTANT_SETS["attention_core"]
    assert f"{len(core.mutants)} wrong kernels and {len(core.variants)} right ones" in text
    assert f"`attention_core` has {', '.join(str(len(CORE.suite(level))) for level in NESTED)}" in text


def test_implementations_are_all_described() -> None:
    """docs/implementations.md names every registered built-in implementation."""
    text = _read("docs/implementations.md")
    assert [name for name in list_names() if f"`{name}`" not in text] == []


def test_results_lists_every_status() -> None:
    """docs/results.md names every status that a finding can have."""
    text = _read("docs/results.md")
    assert [status for status in STATUSES if status not in text] == []


def test_readme_starts_with_the_two_commands() -> None:
    """The first 20 lines of the README have ``make report`` and ``make test``, and CI calls ``make test``."""
    first_screen = "\n".join(_read("README.md").splitlines()[:20])
    assert "make report" in first_screen
    assert "make test" in first_screen
    assert "make test" in _read(".ci/run")
