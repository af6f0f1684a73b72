"""Tests of ``attnbench invariance``: its table, its run file, its exit code, and the column of a certificate."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from attnbench.analysis.certificate import Declaration, Suite, make_certificate
from attnbench.analysis.invariance import GradedProperty, find_measured, list_grades
from attnbench.records.outcome_facts import Crashed, Raised, TimedOut
from attnbench.records.run_file import StoredRun, read_run
from attnbench.records.types import INVARIANCE
from attnbench.words.certificates import spell_certificate
from attninvariance import command as module
from attninvariance.price import compare_prices
from attninvariance.sweep import PROPERTIES, Sweep
from attninvariance.texts import format_price
from commands import run_command
from time_limits import repeat_with_longer_limits
from timed_runs import time_calls

# One comparison or a few for each property.
TINY = Sweep(batches=(2, 3), lengths=(4,), head_dims=(4,), paddings=(1,), chunks=(2,), limit_s=600.0)
# Time limit of a request in seconds, on a machine that is not busy.
TIMEOUT_S = 5
# Grades under implementation, quantity and property, and the only one whose call hangs.
Grades = dict[tuple[str, str, str], GradedProperty]
HANGING = [("faulty.py:HANGS", "output", "decode")]
SOURCE = """
import os
import time

import torch

from attnbench.interface import Policies
from attnzoo.fixed_order import FixedOrder


class Faulty(FixedOrder):
    def __init__(self, name, fault=None, invariant=()):
        self.name, self.fault, self.policies = name, fault, Policies(invariant=invariant)

    def prepare(self, module, case, inputs):
        def call(**arguments):
            output, weights = module(**arguments)
            if self.fault == "batch" and case.problem.batch == 3:
                output = torch.nextafter(output, torch.full_like(output, torch.inf))
            padded, decodes = case.problem.mask.startswith("pad"), case.problem.queries < case.problem.keys
            if self.fault == "ends" and decodes:
                os._exit(7)
            if self.fault == "ends" and padded:
                raise ValueError("no padding here")
            if self.fault == "hangs" and case.problem.queries == 1 and not case.differentiates:
                time.sleep(3600)
            return output, weights

        return call


DECLARED = Faulty("declared", "batch", ("batch_size",))
MEASURED = Faulty("measured", "batch")
ENDS = Faulty("ends", "ends")
HANGS = Faulty("hangs", "hangs")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with the implementations; the sweep ``small`` is tiny."""
    made = tmp_path_factory.mktemp("invariance")
    (made / "faulty.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(module.SWEEPS, "small", TINY)
        yield made


def run(folder: Path, *words: str) -> tuple[CompletedProcess[str], StoredRun]:
    """Run the command in a folder, and return its outcome and the stored run."""
    outcome = run_command("invariance", *words, "--sweep", "small", cwd=folder)
    return outcome, read_run(max(folder.glob("results/*/*.jsonl"), key=lambda path: path.stat().st_mtime_ns))


def test_a_declared_property_that_does_not_hold_fails(folder: Path) -> None:
    """One ulp at batch size 3 is a failure if the policies declare invariance; every property has a stored finding."""
    outcome, stored = run(folder, "faulty.py:DECLARED")
    assert outcome.returncode == 1
    assert stored.run.suite == INVARIANCE
    grades = {(one.name, one.quantity): one for one in list_grades(stored.results)}
    assert len(grades) == 2 * len(PROPERTIES)
    violated = grades["batch_size", "output"]
    assert violated.status == "failed"
    assert violated.grade is not None
    assert (violated.grade.largest_ulp, violated.grade.declared) == (1, True)
    assert grades["key_split", "output"].status == "unsupported"
    assert {one.status for one in grades.values()} == {"passed", "failed", "unsupported"}


def test_a_grade_is_no_failure_and_stands_in_a_certificate(folder: Path) -> None:
    """Without a declaration the same difference is a grade; a certificate of the same code shows it."""
    outcome, measured = run(folder, "faulty.py:MEASURED")
    assert outcome.returncode == 0, outcome.stderr
    assert "1 ulp" in outcome.stdout
    assert "batch 3" in " ".join(outcome.stdout.split())
    name = "faulty.py:MEASURED"
    assert find_measured(measured.run, [measured]) == {name: measured}
    changed = replace(measured.run, sources={name: "0" * 64})
    assert find_measured(changed, [measured]) == {}
    suite = Suite(level="quick", list_versions={}, list_hash="", cases=0, mutation_score=None)
    declared = {name: Declaration(operator="multihead", source="", policies={})}
    made = make_certificate(measured.run, suite, [], declared, [], invariance={name: measured})
    spelled = spell_certificate(made)["implementations"][0]["invariance"]
    json.dumps(spelled)
    assert spelled["run"] == measured.run.id
    (found,) = [one for one in spelled["grades"] if (one["property"], one["quantity"]) == ("batch_size", "output")]
    assert (found["status"], found["largest_ulp"]) == ("passed", 1)
    assert "1 ulp" in found["grade"]


def list_slow(grades: Grades) -> list[tuple[str, str, str]]:
    """Return the keys of the grades that exceeded the time limit."""
    return [key for key, one in grades.items() if any(isinstance(fact, TimedOut) for fact in one.facts)]


@pytest.mark.extended
def test_a_call_that_ends_or_hangs_leaves_the_other_properties(folder: Path) -> None:
    """A crash, an exception and a call without end are a finding each, and all other properties are measured."""

    def attempt(limit_s: float) -> tuple[int, Grades]:
        outcome, stored = run(folder, "faulty.py:ENDS", "faulty.py:HANGS", "--timeout", str(limit_s))
        grades = {(one.implementation, one.quantity, one.name): one for one in list_grades(stored.results)}
        return outcome.returncode, grades

    (code, found), _ = repeat_with_longer_limits(attempt, lambda made: list_slow(made[1]) == HANGING, first_s=TIMEOUT_S)
    assert code == 1
    assert list_slow(found) == HANGING
    for quantity in ("output", "gradients"):
        assert isinstance(found["faulty.py:ENDS", quantity, "decode"].facts[0], Crashed)
        assert isinstance(found["faulty.py:ENDS", quantity, "padding"].facts[0], Raised)
        assert found["faulty.py:ENDS", quantity, "threads"].grade is not None
        assert found["faulty.py:HANGS", quantity, "threads"].grade is not None


def test_the_price_is_relative_to_the_fastest() -> None:
    """Of the timings of a call, the fastest implementation is the one by whose time the others are divided."""
    timed = [time_calls("slow", 3.0), time_calls("fast")]
    prices = compare_prices(timed)
    assert [one.implementation for one in prices] == ["fast", "slow"]
    assert {one.fastest for one in prices} == {"fast"}
    assert prices[1].ratio is not None
    assert prices[1].ratio.value == pytest.approx(3, rel=0.2)
    assert "fastest" in format_price(prices[0])
