"""Tests of ``attnbench invariance``: its table, its run file, its exit code, and the column of a certificate."""

import json
from pathlib import Path

import pytest

from attnbench.analysis.certificate import Declaration, Suite, make_certificate
from attnbench.analysis.invariance import find_measured, list_grades
from attnbench.records.outcome_facts import Crashed, Raised, TimedOut
from attnbench.records.run_file import read_run
from attnbench.records.types import INVARIANCE
from attnbench.words.certificates import spell_certificate
from attninvariance import command as module
from attninvariance.sweep import PROPERTIES, Sweep
from commands import run_command

# One comparison or a few for each property.
TINY = Sweep(batches=(2, 3), lengths=(4,), head_dims=(4,), paddings=(1,), chunks=(2,), limit_s=600.0)
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
            if self.fault == "hangs" and decodes:
                time.sleep(3600)
            return output, weights

        return call


DECLARED = Faulty("declared", "batch", ("batch_size",))
MEASURED = Faulty("measured", "batch")
ENDS = Faulty("ends", "ends")
HANGS = Faulty("hangs", "hangs")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the implementations; the sweep ``small`` is tiny."""
    (tmp_path / "faulty.py").write_text(SOURCE)
    monkeypatch.setitem(module.SWEEPS, "small", TINY)
    return tmp_path


def find_file(folder: Path) -> Path:
    """Return the newest run file below a folder."""
    return max(folder.glob("results/*/*.jsonl"))


def test_a_violation_fails_only_where_it_is_declared(folder: Path) -> None:
    """One ulp at batch size 3 is a failure if the policies declare invariance, and else a grade; both are stored."""
    declared = run_command("invariance", "faulty.py:DECLARED", "--sweep", "small", cwd=folder)
    stored = read_run(find_file(folder))
    measured = run_command("invariance", "faulty.py:MEASURED", "--sweep", "small", cwd=folder)
    assert (declared.returncode, measured.returncode) == (1, 0), measured.stderr
    assert "1 ulp" in measured.stdout
    assert "batch 3" in " ".join(measured.stdout.split())
    assert stored.run.suite == INVARIANCE
    grades = {(one.name, one.quantity): one for one in list_grades(stored.results)}
    assert len(grades) == 2 * len(PROPERTIES)
    violated = grades["batch_size", "output"]
    assert violated.status == "failed"
    assert violated.grade is not None
    assert (violated.grade.largest_ulp, violated.grade.declared) == (1, True)
    assert grades["key_split", "output"].status == "unsupported"
    assert {one.status for one in grades.values()} == {"passed", "failed", "unsupported"}


def test_a_call_that_ends_or_hangs_leaves_the_other_properties(folder: Path) -> None:
    """A crash, an exception and a call without end are a finding each, and all other properties are measured."""
    outcome = run_command(
        "invariance", "faulty.py:ENDS", "faulty.py:HANGS", "--sweep", "small", "--timeout", "15", cwd=folder
    )
    assert outcome.returncode == 1
    grades = list_grades(read_run(find_file(folder)).results)
    by_name = {(one.implementation, one.quantity, one.name): one for one in grades}
    for quantity in ("output", "gradients"):
        assert isinstance(by_name["faulty.py:ENDS", quantity, "decode"].facts[0], Crashed)
        assert isinstance(by_name["faulty.py:ENDS", quantity, "padding"].facts[0], Raised)
        assert isinstance(by_name["faulty.py:HANGS", quantity, "decode"].facts[0], TimedOut)
        assert by_name["faulty.py:ENDS", quantity, "threads"].grade is not None
        assert by_name["faulty.py:HANGS", quantity, "threads"].grade is not None


def test_a_certificate_shows_the_grades_of_the_same_code(folder: Path) -> None:
    """A certificate has the grades that were measured of the same code on the same machine, as data and as texts."""
    run_command("invariance", "faulty.py:MEASURED", "--sweep", "small", cwd=folder)
    measured = read_run(find_file(folder))
    assert find_measured(measured.run, [measured]) == {"faulty.py:MEASURED": measured}
    suite = Suite(level="quick", list_versions={}, list_hash="", cases=0, mutation_score=None)
    declared = {"faulty.py:MEASURED": Declaration(operator="multihead", source="", policies={})}
    made = make_certificate(
        measured.run, suite, [], declared, [], invariance=find_measured(measured.run, [measured])
    )  # fmt: skip
    spelled = spell_certificate(made)["implementations"][0]["invariance"]
    json.dumps(spelled)
    assert spelled["run"] == measured.run.id
    (found,) = [one for one in spelled["grades"] if (one["property"], one["quantity"]) == ("batch_size", "output")]
    assert (found["status"], found["largest_ulp"]) == ("passed", 1)
    assert "1 ulp" in found["grade"]
