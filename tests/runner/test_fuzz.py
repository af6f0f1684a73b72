"""Tests of fuzzing: a seed determines the drawn cases; a failure is shrunk and reported, and the search continues."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from attnbench.cases import CALL_MODES, DTYPES, Case
from attnbench.cli import attnbench as command
from attnbench.cli.fuzzing import append_case, choose_effort
from attnbench.jobs.job import ConformJob
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.operators.multihead.problem import (
    ATTENTION_MASKS,
    EXACT_MASKS,
    IDENTITY_REGIMES,
    LOGIT_STD,
    PADDING_MASKS,
)
from attnbench.records.outcome_facts import FailsAfterOthersOnly
from attnbench.records.run_file import ResultsError, read_run
from attnbench.records.types import FAILURES, Result
from attnbench.runner import Expectation, NoProgress, Session
from attnbench.runner.fuzz import TRIES, TRIES_OF_A_DEATH, Found, SearchEffort, draw_cases, fuzz
from commands import run_command

PLAIN = "multihead/B1.L1.S1.E1.H1/-/mask=none/regime=plain/seed=0/float32/cpu/eval"

# Implementations that fail, each in a different way, for more than 16 keys and at least two heads; Right never fails.
SOURCE = """
import os

import torch


class Base(torch.nn.MultiheadAttention):
    def forward(self, query, key, value, **keywords):
        output, weights = super().forward(query, key, value, **keywords)
        keys = key.shape[1 if self.batch_first and key.dim() == 3 else 0]
        return (self.change(output) if keys > 16 and self.num_heads > 1 else output), weights

    def change(self, output):
        return output


class Right(Base):
    pass


class Wrong(Base):
    def change(self, output):
        return output + 1


class Dies(Base):
    def change(self, output):
        os._exit(7)


class FailsLater(Base):
    calls = 0

    def forward(self, query, key, value, **keywords):
        FailsLater.calls += 1
        return super().forward(query, key, value, **keywords)

    def change(self, output):
        return output + (FailsLater.calls > 12)


class Flaky(Base):
    calls = 0

    def change(self, output):
        Flaky.calls += 1
        return output + Flaky.calls % 2
"""
SMALLEST = "multihead/B1.L1.S17.E2.H2/-/mask=none/regime=plain/seed=0/float32/cpu/eval"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """One session, with one oracle worker, for all searches of this file."""
    with Session() as opened:
        yield opened


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File with the implementations of ``SOURCE``."""
    path = tmp_path_factory.mktemp("fuzz") / "own.py"
    path.write_text(SOURCE)
    return path


def search(session: Session, name: str, results: list[Result], **changes: Any) -> Iterator[Found]:
    """Search for failures of forward_parity on 40 cases drawn from seed 3, and append the results to ``results``."""
    keywords: dict[str, Any] = {
        "run": "r",
        "progress": NoProgress(),
        "effort": SearchEffort(seed=3, examples=40),
        "add": results.append,
        "checks": frozenset({"forward_parity"}),
    }
    return fuzz(session, [name], **keywords | changes)


# Drawing


@pytest.mark.extended
def test_a_seed_draws_the_same_cases_in_every_process(tmp_path: Path) -> None:
    """A seed draws the same cases in a process that has imported other modules; another seed draws other cases."""
    drawn = [case.id for case in draw_cases(OPERATOR, seed=1, count=150)]
    assert len(set(drawn)) == 150
    assert drawn == [case.id for case in draw_cases(OPERATOR, seed=1, count=150)]
    assert drawn != [case.id for case in draw_cases(OPERATOR, seed=2, count=150)]
    (tmp_path / "constants.py").write_text("NUMBERS = [3, 5, 8, 50, 60, 100]\n")
    program = (
        "import constants\nfrom attnbench.operators.multihead import OPERATOR\n"
        "from attnbench.runner.fuzz import draw_cases\n"
        "print(*(case.id for case in draw_cases(OPERATOR, seed=1, count=150)), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == drawn


def test_every_form_is_drawn() -> None:
    """All dtypes, masks, regimes, flags and modes occur in many drawn cases, except the modes that compile."""
    cases = draw_cases(OPERATOR, seed=0, count=1500)
    assert {case.mode for case in cases} == {
        mode for mode, call_mode in CALL_MODES.items() if call_mode.compiler is None
    }
    assert {case.dtype for case in cases} == set(DTYPES)
    problems = [case.problem for case in cases]
    assert {p.regime for p in problems} == {*LOGIT_STD, *IDENTITY_REGIMES}
    assert {p.attention_mask for p in problems} == {None, *ATTENTION_MASKS}
    assert {p.padding_mask for p in problems} == {None, *PADDING_MASKS}
    assert {(p.regime, p.mask) for p in problems if p.regime in EXACT_MASKS} == {
        (regime, mask) for regime, masks in EXACT_MASKS.items() for mask in masks
    }
    flags = (
        "bias", "add_bias_kv", "add_zero_attn", "batch_first", "self_attention", "key_is_value", "query_is_key",
        "need_weights", "average_attn_weights", "is_causal", "dropout", "kdim", "vdim",
    )  # fmt: skip
    for name in flags:
        assert {bool(getattr(p, name)) for p in problems} == {False, True}, name
    assert {p.batch for p in problems} == {None, 0, 1, 2, 3, 4, 5}
    for name in ("queries", "keys"):
        assert {0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65} <= {getattr(p, name) for p in problems}, name


def test_a_drawn_case_can_be_read_from_its_id() -> None:
    """The id of a drawn case determines the case, so that a list file of ids can contain the case."""
    problems = {"multihead": MultiheadProblem}
    assert all(Case.parse(case.id, problems) == case for case in draw_cases(OPERATOR, seed=0, count=300))


# Searching


@pytest.mark.extended
def test_a_failure_is_shrunk_to_the_smallest_case(session: Session, own: Path) -> None:
    """A failure that needs 17 keys and 2 heads is shrunk to a plain case of 17 keys and 2 heads with head_dim 1."""
    results: list[Result] = []
    (found,) = search(session, f"{own}:Wrong", results)
    assert found.case == SMALLEST
    assert (found.finding.check, found.finding.status) == ("forward_parity", "failed")
    assert found.drawn != found.case
    assert 0 < found.tries <= TRIES
    assert {result.suite for result in results} == {"fuzz"}
    failing = [r.case for r in results if r.findings[0].status in FAILURES]
    # The result of the smallest case is stored before that of the drawn case, because a report shows the first failure.
    assert failing[:2] == [SMALLEST, found.drawn]
    assert len({r.case for r in results}) == len(results)


def test_nothing_is_found_in_a_correct_implementation(session: Session, own: Path) -> None:
    """A correct implementation passes on all drawn cases to which the check applies."""
    results: list[Result] = []
    assert list(search(session, f"{own}:Right", results)) == []
    checked = [result.case for result in results]
    drawn = [case.id for case in draw_cases(OPERATOR, seed=3, count=40)]
    assert checked == [case for case in drawn if case in checked]
    assert len(checked) > 25
    assert {f.status for r in results for f in r.findings} == {"passed"}


def test_a_crash_is_a_failure_that_is_shrunk(session: Session, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that crashes is shrunk in few attempts, each in a process of its own, and the search continues."""
    monkeypatch.setattr("attnbench.runner.fuzz.TRIES", 25)
    results: list[Result] = []
    (found,) = search(session, f"{own}:Dies", results, effort=SearchEffort(seed=3, examples=20))
    assert found.finding.status == "crashed"
    problem = Case.parse(found.case, {"multihead": MultiheadProblem}).problem
    assert problem.keys > 16
    assert problem.num_heads > 1
    statuses = [result.findings[0].status for result in results]
    assert statuses.count("crashed") >= 3
    assert "passed" in statuses[statuses.index("crashed") :]
    assert not any(finding.status == "not_run" for result in results for finding in result.findings)


def test_attempts_that_end_a_process_are_few() -> None:
    """A case that crashes is shrunk in at most ten attempts, and a case that times out in at most two."""
    assert TRIES // TRIES_OF_A_DEATH["crashed"] <= 10
    assert TRIES // TRIES_OF_A_DEATH["timeout"] <= 2


@pytest.mark.extended
def test_a_flaky_failure_is_reported(session: Session, own: Path) -> None:
    """A failure that occurs only in every second call is found, and is stored as a failure."""
    results: list[Result] = []
    both = frozenset({"forward_parity", "repeats_itself"})
    found = list(search(session, f"{own}:Flaky", results, checks=both, effort=SearchEffort(seed=3, examples=25)))
    assert {one.finding.check for one in found} & {"forward_parity", "repeats_itself"}
    for one in found:
        stored = next(f for r in results if r.case == one.case for f in r.findings if f.check == one.finding.check)
        assert stored == one.finding
        assert stored.status in FAILURES


@pytest.mark.extended
def test_a_failure_only_after_other_calls_is_reported(session: Session, own: Path) -> None:
    """A failure that occurs only after other checks is shrunk together with these checks, and the reason says so."""
    results: list[Result] = []
    (found,) = search(session, f"{own}:FailsLater", results)
    assert found.finding.facts[-1] == FailsAfterOthersOnly()
    assert found.case == SMALLEST


class InterruptedProgress(NoProgress):
    """Progress display that raises KeyboardInterrupt in the fifth attempt to shrink a case."""

    def __init__(self) -> None:
        self.tries = 0

    def now(self, text: str) -> None:
        """Count the attempts to shrink a case, and raise in the fifth."""
        self.tries += "smaller" in text
        if self.tries == 5:
            raise KeyboardInterrupt


def test_an_interrupt_keeps_everything(session: Session, own: Path) -> None:
    """After an interrupt, all results are kept, including the failure on the smallest case found so far."""
    results: list[Result] = []
    with pytest.raises(KeyboardInterrupt):
        list(search(session, f"{own}:Wrong", results, progress=InterruptedProgress()))
    failing = [r for r in results if any(f.status in FAILURES for f in r.findings)]
    assert len(failing) == 2
    assert results[-2:] == failing
    assert len(results) > 2


def test_an_error_of_the_search_is_no_failing_case(session: Session, own: Path) -> None:
    """An error while a result is stored, such as a full disk, ends the search with its own message."""

    def add(result: Result) -> None:
        raise ResultsError("no space left")

    with pytest.raises(ResultsError, match=r"^no space left$"):
        list(search(session, f"{own}:Right", [], add=add))


def test_expected_failures_are_not_found(session: Session, own: Path, monkeypatch: Any) -> None:
    """An expected failure is not reported as found; a case that matches the expectation and passes is no failure."""
    monkeypatch.chdir(own.parent)
    expectation = Expectation(implementation="own.py:Wrong", check="forward_*", case="*", reason="known", link="l")
    results: list[Result] = []
    effort = SearchEffort(seed=3, examples=40)
    assert list(search(session, "own.py:Wrong", results, expectations=[expectation], effort=effort)) == []
    assert {f.status for r in results for f in r.findings} == {"passed", "expected_failure"}


# Command line


def effort_of(**given: Any) -> SearchEffort:
    """Return the effort of a search with these command-line options, and without the other options."""
    return choose_effort(ConformJob(suite="fuzz", **given))


def test_effort_is_repeatable_in_ci_and_with_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default a search uses a new seed and takes a minute; in CI, or with a given seed, it tries 200 cases."""
    monkeypatch.delenv("CI", raising=False)
    assert (effort_of().budget_s, effort_of().examples) == (60.0, None)
    assert len({effort_of().seed for _ in range(20)}) > 1
    assert effort_of(seed=7) == SearchEffort(seed=7, examples=200)
    assert effort_of(seed=7, budget_s=5.0) == SearchEffort(seed=7, budget_s=5.0)
    assert effort_of(seed=7, examples=9) == SearchEffort(seed=7, examples=9)
    monkeypatch.setenv("CI", "true")
    assert effort_of() == SearchEffort(seed=0, examples=200)


def run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``conform --suite fuzz`` on the implementation ``Wrong``."""
    return run_command("conform", "own.py:Wrong", "--suite", "fuzz", *words, cwd=cwd)


@pytest.mark.extended
def test_the_command_prints_and_keeps_the_failure(own: Path) -> None:
    """A failure is printed with the command that reproduces it, its case is added to a list file, its result stored."""
    kept = own.parent / "found.txt"
    kept.write_text("# a list")
    words = ("--seed", "3", "--examples", "40", "--check", "forward_parity", "--keep-found", "found.txt")
    done = run(own.parent, *words)
    assert done.returncode == 1, done.stderr
    assert kept.read_text() == f"# a list\n{SMALLEST}\n"
    assert f"attnbench reproduce '{SMALLEST}' --check forward_parity own.py:Wrong" in done.stdout
    assert done.stdout.endswith(f"\n{SMALLEST}\n")
    assert "--seed 3 repeats the same cases" in done.stderr
    stored = read_run(Path(next((own.parent / "results").glob("*/*.jsonl"))))
    assert stored.run.suite == "fuzz"
    assert SMALLEST in {result.case for result in stored.results}
    assert not (own.parent / ".hypothesis").exists()


def test_an_id_is_kept_once(tmp_path: Path) -> None:
    """A case id is appended to a list file only once."""
    for case in ("a", "b", "a"):
        append_case(case, tmp_path / "found.txt")
    assert (tmp_path / "found.txt").read_text() == "a\nb\n"


def test_findings_come_as_json(own: Path) -> None:
    """With ``--json -``, standard output is one JSON object with the findings."""
    done = run(own.parent, "--seed", "3", "--examples", "3", "--check", "forward_parity", "--json", "-")
    assert json.loads(done.stdout)["run"]["suite"] == "fuzz"


@pytest.mark.parametrize("option", [("--case", "*"), ("--dtype", "float64"), ("--shard", "1/2")])
def test_options_of_lists_are_refused(own: Path, option: tuple[str, str]) -> None:
    """Options that select cases from lists are refused with ``--suite fuzz``, which draws cases."""
    with pytest.raises(click.UsageError, match=f"{option[0]}: selects listed cases"):
        command.main(["conform", f"{own}:Wrong", "--suite", "fuzz", *option], standalone_mode=False)


@pytest.mark.parametrize("option", [("--budget", "5s"), ("--seed", "1"), ("--examples", "1"), ("--keep-found", "f")])
def test_options_of_fuzzing_are_refused_elsewhere(option: tuple[str, str]) -> None:
    """Options for drawing cases are refused with suites whose cases are listed."""
    with pytest.raises(click.UsageError, match=f"{option[0]}:? needs generated cases: add --suite fuzz"):
        command.main(["conform", "sdpa", *option], standalone_mode=False)
