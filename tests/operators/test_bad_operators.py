"""Tests of operators with an invalid description: each gives an error of one line, and other operators still run."""

import subprocess
from pathlib import Path

import pytest

from commands import run_new_process

# An operator with two chapters of checks: attnbench's ``forward`` and one of its own.
OPERATOR = """
from dataclasses import dataclass
{imports}
from attnbench.cases import Case, Problem, size
from attnbench.operators.formula import FormulaOperator


@dataclass(frozen=True, slots=True, kw_only=True)
class DoublingProblem(Problem):
    sequences: int = size("B")


class Doubling(FormulaOperator):
    name = "doubling"
    problem = DoublingProblem
    chapters = {chapters}
    mutants = {mutants!r}

    def suite(self, level):
        return [Case(operator=self.name, problem=DoublingProblem(sequences=2), mode="inference")]


OPERATOR = {value}
"""
IMPLEMENTATION = """
from attnbench.kernel import from_call

IMPLEMENTATION = from_call(lambda tokens: 2 * tokens, operator="doubling", name="doubling")
"""
CHECKS = '''
from attnbench.checks.requirement import check


@check()
def {name}(candidate):
    """Nothing is required."""
    return iter(())
'''


def install(folder: Path, *, check: str = "doubles", **parts: str) -> None:
    """Install an operator with an implementation and checks in a folder."""
    filled = {"imports": "", "chapters": '("forward", "doubling_checks")', "mutants": "", "value": "Doubling()"} | parts
    (folder / "doubling.py").write_text(OPERATOR.format(**filled))
    (folder / "doubling_implementation.py").write_text(IMPLEMENTATION)
    (folder / "doubling_checks.py").write_text(CHECKS.format(name=check))
    (folder / "bad_mutants.py").write_text("MUTANTS = []\n")
    info = folder / "doubling-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: doubling\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[attnbench.operators]\ndoubling = doubling:OPERATOR\n"
        "[attnbench.implementations]\ndoubling = doubling_implementation:IMPLEMENTATION\n"
    )


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, and find the plug-ins that are installed there."""
    return run_new_process(*words, "--results", "results", cwd=folder, search=[folder])


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        (
            {"imports": "import torch"},
            "operator 'doubling': importing doubling must not import torch: import torch inside "
            "the functions that use it",
        ),
        (
            {"check": "forward_parity"},
            "operator 'doubling': check 'forward_parity' of doubling_checks has the name of a check of "
            "attnbench.checks.chapters.forward; rename it",
        ),
        (
            {"chapters": '("forward", "doubling_checks", "no_such_module")'},
            "there is no chapter of checks 'no_such_module'; name one of forward, ",
        ),
        ({"value": "DoublingProblem"}, "operator 'doubling' must be an attnbench.Operator, got a type"),
        ({"imports": "import no_such_module"}, "cannot import 'doubling': ModuleNotFoundError: "),
    ],
    ids=["imports torch", "a check of ours", "no such chapter", "no operator", "cannot be imported"],
)
def test_a_bad_description_is_reported_in_one_line(tmp_path: Path, parts: dict[str, str], line: str) -> None:
    """A run of an operator with an invalid description prints one line and ends with exit code 2."""
    install(tmp_path, **parts)
    done = run(tmp_path, "conform", "doubling")
    assert done.returncode == 2, done.stderr
    (message,) = done.stderr.splitlines()
    assert message.startswith(f"attnbench: {line}")


def test_other_operators_are_not_affected(tmp_path: Path) -> None:
    """A run of another operator succeeds, even if an installed operator's description is invalid (it imports torch)."""
    install(tmp_path, imports="import torch")
    words = ("conform", "core_reshaped", "--check", "forward_parity", "--case", "*/float64/cpu/eval")
    assert run(tmp_path, *words).returncode == 0


def test_invalid_mutants_are_reported_in_one_line(tmp_path: Path) -> None:
    """``Operator.mutants`` must name a ``MutantSet``."""
    install(tmp_path, mutants="bad_mutants:MUTANTS")
    done = run(tmp_path, "conform", "--mutants", "--operator", "doubling")
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "attnbench: operator 'doubling': mutants must name a MutantSet, but bad_mutants:MUTANTS is a list"
    )
