"""Tests that the numbers and names in the documents agree with the code."""

from pathlib import Path
from typing import get_args

import pytest

from attnbench.cases import NESTED
from attnbench.checks.catalogue import read_checks
from attnbench.mutants.multihead import MUTANTS
from attnbench.operators.attention_core import OPERATOR as CORE
from attnbench.operators.multihead import OPERATOR
from attnbench.plugins.registry import list_names
from attnbench.records.types import STATUSES, Record
from attnbench.report.tables import TABLES
from docs import generate
from registered_mutants import MUTANT_SETS

ROOT = Path(__file__).parent.parent


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", generate.PAGES)
def test_generated_pages_are_what_the_script_makes(page: str) -> None:
    """docs/formats.md and docs/checks.md are what ``python docs/generate.py`` writes from the source."""
    assert _read(f"docs/{page}") == generate.PAGES[page]()


def test_every_column_and_record_has_a_meaning() -> None:
    """The generated pages have every check, every record of a run file and every column of every table."""
    formats, checks = _read("docs/formats.md"), _read("docs/checks.md")
    assert [name for name in read_checks() if f"| `{name}` |" not in checks] == []
    assert [kind.__name__ for kind in get_args(Record) if f"### {kind.__name__}\n" not in formats] == []
    assert [name for name, table in TABLES.items() if f"### {name}{'.csv' * table.in_report}\n" not in formats] == []


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
    """The first 20 lines of the README have ``make report`` and ``make test``; CI runs all tests but the scores."""
    first_screen = "\n".join(_read("README.md").splitlines()[:20])
    assert "make report" in first_screen
    assert "make test" in first_screen
    made = {word for line in _read(".ci/run").splitlines() if line.startswith("make ") for word in line.split()}
    assert {"lint", "lint-workflows", "docs", "test", "test-extended"} <= made
