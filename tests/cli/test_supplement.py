"""``attnbench conform`` on whole suites: supplementary cases, frozen declarations, exit code without a verdict."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from attnbench import conform
from attnbench.analysis.coverage import judge_conformance
from attnbench.cases import CaseId
from attnbench.cli.conform_command import command
from attnbench.operators.multihead import OPERATOR
from attnbench.records.outcome_facts import DeclarationChanged
from attnbench.records.run_file import read_run

# An implementation that takes simple cases only, or no case.
SOURCE = """
from attnbench.interface import Implementation, Refusal


class Mine(Implementation):
    name = "mine"

    def unsupported(self, case):
        p = case.problem
        simple = p.mask == "none" and not (p.kdim or p.vdim or p.add_bias_kv or p.add_zero_attn)
        simple = simple and p.bias and p.batch_first and p.batch == 2 and not p.dropout and case.dtype == "float32"
        simple = simple and not p.self_attention and not p.key_is_value and not p.query_is_key and case.compiler is None
        return None if TAKES and simple and p.queries < 10 and p.keys < 10 else "not simple"

    def build(self, reference):
        return reference

    def prepare(self, module, case, inputs):
        if self.unsupported(case):
            raise Refusal("not simple")
        return module


MINE = Mine()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(*, takes: bool) -> None:
    """Write an implementation that takes simple cases, or none."""
    Path("mine.py").write_text(SOURCE.replace("TAKES", str(takes)))


def run(*words: str) -> Result:
    """Run ``attnbench conform`` on the implementation."""
    words = ("mine.py:MINE", "--threads", "1", *words)
    with pytest.MonkeyPatch.context() as patch:
        # The stored run has the command line of the process.
        patch.setattr(sys, "argv", ["attnbench", "conform", *words])
        return CliRunner().invoke(command, list(words), standalone_mode=False)


def read() -> Any:
    """Return the only stored run."""
    (path,) = Path("results").glob("*/*.jsonl")
    return read_run(path)


@pytest.mark.extended
def test_a_suite_is_supplemented(here: Path) -> None:
    """The supplementary cases are run and stored, and the certificate counts them apart from the suite's cases."""
    write(takes=True)
    done = run("--suite", "core", "--certificate", "certificate.json", "--json", "findings.json")
    stored = read()
    (made,) = stored.completions
    listed = {case.id for case in OPERATOR.suite("core")}
    further = {result.case for result in stored.results if result.completes}
    assert further == set(made.cases)
    assert not further & listed
    assert made.covered == made.taken > made.covered_by_list
    certificate = json.loads((here / "certificate.json").read_text())
    (one,) = certificate["implementations"]
    assert one["completion"]["completion_hash"] == made.completion_hash
    assert one["completion"]["pool_hash"] == made.pool_digest
    assert one["completion"]["cases"] == len(further)
    assert certificate["suite"]["cases"] == len(listed)
    assert sum(one["findings"].values()) == sum(
        len(result.findings) for result in stored.results if result.case in listed
    )
    assert done.return_value == 0


@pytest.mark.extended
def test_an_implementation_that_refuses_everything_has_no_verdict(here: Path) -> None:
    """The exit code is 3, with the reason; the certificate is not conformant; a resumed run keeps the declarations."""
    write(takes=False)
    done = run("--suite", "core", "--certificate", "certificate.json")
    assert done.return_value == 3
    assert json.loads((here / "certificate.json").read_text())["conformant"] is False
    stored = read()
    # Keep the run, its completion and the results of ten cases.
    stored.path.write_bytes(b"".join(stored.path.read_bytes().splitlines(keepends=True)[:12]))
    write(takes=True)
    again = CliRunner().invoke(command, ["--resume", stored.run.id], standalone_mode=False)
    assert again.return_value == 3
    after = read()
    assert after.completions == stored.completions
    assert all(f.status == "unsupported" for result in after.results for f in result.findings)
    assert any(
        isinstance(warning, DeclarationChanged) for r in after.results for f in r.findings for warning in f.warnings
    )


def test_parts_of_a_suite_have_parts_of_the_supplementary_cases(here: Path) -> None:
    """Each part of a suite has a part of the supplementary cases; a part is no verdict, and needs no 20 cases."""
    write(takes=True)
    cases: list[set[str]] = []
    for part in ("1/20", "2/20"):
        done = run("--suite", "core", "--shard", part, "--results", part[0])
        assert done.return_value == 0
        (path,) = Path(part[0]).glob("*/*.jsonl")
        stored = read_run(path)
        cases.append({result.case for result in stored.results if result.completes})
        assert cases[-1] < set(stored.completions[0].cases)
    assert cases[0]
    assert not cases[0] & cases[1]


@pytest.mark.parametrize(
    "words",
    [
        ("--case", "*B2.L5.S7.E24.H3/bias+batch_first+need_weights/mask=none/*float32/cpu/*"),
        ("--check", "inputs_untouched", "--case", "*L5.S7*float32/cpu/inference"),
        ("--dtype", "float64", "--case", "*B2.L5.S7*/mask=none/*cpu/inference"),
    ],
)
def test_selected_cases_are_not_supplemented(here: Path, words: tuple[str, ...]) -> None:
    """With a selection of cases, checks or dtypes, the implementation is not asked before the run."""
    write(takes=True)
    run("--suite", "core", *words)
    assert read().completions == ()
    assert here.exists()


def test_the_suite_quick_gives_a_verdict(here: Path) -> None:
    """20 cases are checked; without supplementary cases there are too few, and the exit code is 3."""
    write(takes=True)
    done = run()
    found = judge_conformance(read().results)
    assert (found.verdict, found.suite, found.checked) == ("yes", "quick", 20)
    assert done.return_value == 0
    assert run("--no-completion", "--results", "few").return_value == 3
    (path,) = (here / "few").glob("*/*.jsonl")
    found = judge_conformance(read_run(path).results)
    assert (found.verdict, found.suite, found.checked) == ("only", "quick", 6)


@pytest.mark.extended
def test_the_python_interface_has_the_same_rule(here: Path) -> None:
    """A report of a whole suite without 20 checked cases is not ok and says why; one of selected cases may be."""
    write(takes=False)
    report = conform("mine.py:MINE", suite="core", threads=1)
    assert not report.ok
    assert report.completion is not None
    assert report.completion.taken == 0
    assert report.undecided
    write(takes=True)
    case = next(case.id for case in OPERATOR.suite("quick") if CaseId.parse(case.id).mode == "eval")
    assert conform("mine.py:MINE", suite="core", cases=[case], threads=1).ok
    assert here.exists()
