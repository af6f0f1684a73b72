"""Tests of the matrix of checks and mutants: which check kills which mutant, and which mutants survive."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from attnbench.cases import Case
from attnbench.cli.mutants import print_matrix, to_json
from attnbench.interface import Implementation
from attnbench.mutants.multihead import MUTANTS
from attnbench.operators.multihead.suites import CROSS
from attnbench.processes.mutation_requests import FindFailingChecks, MutantNames
from attnbench.runner import NoProgress, Plan, mutation
from attnbench.runner.mutation import Matrix, run_mutants
from attnbench.workers.mutation_worker import MutationWorker

PLAIN = Case(operator="multihead", problem=CROSS, mode="inference").id


@pytest.fixture
def matrix() -> Matrix:
    """Matrix of five mutants, an equivalent mutant, and a correct variant that fails a check.

    Mutant c survives; the check that mutant e names did not run.
    """
    made = Matrix(
        mutants={
            "a": "forward_parity",
            "b": "weights_parity",
            "c": "forward_parity",
            "d": "forward_parity",
            "e": "far_offsets",
        },
        equivalents=["same"],
        variants=["right"],
        asked={"forward_parity", "input_gradients", "weights_parity"},
        operators=dict.fromkeys("abcde", "multihead"),
    )
    made.failed["a"] |= {("forward_parity", "x"), ("forward_parity", "y"), ("input_gradients", "x")}
    made.failed["b"] |= {("forward_parity", "x")}
    made.failed["d"] |= {("forward_parity", "x")}
    made.failed["right"] |= {("repeats_itself", "y")}
    return made


def test_a_check_is_needed_by_mutants_that_no_other_check_kills(matrix: Matrix) -> None:
    """A check kills each mutant that fails the check; the matrix also lists the mutants that fail no other check."""
    assert matrix.find_killed_by("forward_parity") == ["a", "b", "d"]
    assert matrix.find_killed_only_by("forward_parity") == ["b", "d"]
    assert (matrix.find_killed_by("input_gradients"), matrix.find_killed_only_by("input_gradients")) == (["a"], [])


def test_outcomes_are_distinguished(matrix: Matrix) -> None:
    """The matrix lists survivors, groups of mutants with the same failures, and mutants killed only by other checks.

    "Other" checks are all but the one that the mutant names.
    """
    assert matrix.find_survivors() == ["c"]
    assert matrix.find_unasked() == ["e"]
    assert matrix.find_killed_on({"y"}) == ["a"]
    assert matrix.group_indistinguishable() == [["b", "d"]]
    assert matrix.find_killed_elsewhere() == ["b"]
    assert matrix.find_caught_by_few() == ["a", "b", "d"]
    assert matrix.find_false_alarms() == {"right": ["repeats_itself"]}


def test_the_table_names_faults_of_the_suite(matrix: Matrix, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a line for each check; the lines below name survivors, idle checks and variants that fail.

    An idle check is one that kills no mutant.
    """
    print_matrix(matrix, ["forward_parity", "input_gradients", "weights_parity"])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:4] == [
        "chapter    check            named by  caught  kills  alone",
        "forward    forward_parity   3         2       3      2",
        "weights    weights_parity   1",
        "gradients  input_gradients                    1",
    ]
    for line in (
        "checks that catch no mutant (1): weights_parity",
        "mutants that survive (1): c",
        "mutants that other checks catch, but not the check that should (1): b",
        "mutants that fail the same checks on the same cases (1): b = d",
        "correct variants and equivalent mutants that a check fails (1): right by repeats_itself",
        "3 mutants fail at most 3 checks",
        "1 of 2 correct variants and equivalent mutants pass",
        "mutation score: 3 of 4 caught (75.0%)",
    ):
        assert line in lines
    lists = {"multihead": {"core": ["y"], "full": ["x", "y"]}}
    stored = json.loads(json.dumps(to_json(matrix, ["forward_parity"], {"abc": {"score": 0.75}}, lists)))
    assert stored["scores"] == {"abc": {"score": 0.75}}
    assert stored["checks"] == {"forward_parity": {"kills": 3, "alone": ["b", "d"]}}
    assert {name: own["level"] for name, own in stored["mutants"].items()} == {
        "a": "core", "b": "full", "c": None, "d": "full", "e": None,
    }  # fmt: skip
    assert stored["mutants"]["a"] == {
        "named": "forward_parity", "level": "core", "cases": {"forward_parity": 2, "input_gradients": 1},
    }  # fmt: skip


class Raises(Implementation):
    """Implementation whose call raises ValueError, and which supports only the mode inference."""

    name = "raises"

    def unsupported(self, case: Case) -> str | None:
        """Refuse all modes except inference."""
        return None if case.mode == "inference" else "inference only"

    def build(self, reference: Any) -> Any:
        """Return the reference."""
        return reference

    def prepare(self, module: Any, case: Case, inputs: Any) -> Any:
        """Return a call that raises."""

        def call(**_: Any) -> Any:
            raise ValueError("no")

        return call


def test_a_mutant_that_raises_is_killed_and_one_that_refuses_is_not(tmp_path: Path) -> None:
    """A mutant whose call raises fails each check; a mutant that refuses the case fails none."""
    worker = MutationWorker(tmp_path, ["multihead"])
    worker._implementations["raises"] = Raises()
    checks = ["forward_parity", "repeats_itself"]
    request = FindFailingChecks(case=PLAIN, checks=checks, names=["raises"])
    assert worker.find_failing_checks(request) == {"raises": checks}
    assert worker.find_failing_checks(replace(request, case=PLAIN.replace("inference", "eval"))) == {}


def test_all_mutants_run_on_a_case_in_worker_processes() -> None:
    """On one case and one check, scale_missing is killed, mask_inverted survives, and no correct variant fails."""
    plan = Plan(case=PLAIN, checks=("forward_parity",), missing=None, flop=0)
    found = run_mutants([plan], {PLAIN}, progress=NoProgress(), jobs=1)
    # The plan's only case is of multihead, so that only mutants of multihead run.
    assert list(found.mutants) == found.find_mutants_of("multihead") == [mutant.name for mutant in MUTANTS.mutants]
    assert list(found.variants) == [variant.name for variant in MUTANTS.variants]
    assert found.find_false_alarms() == {}
    shown = {mutant.name for mutant in MUTANTS.mutants if mutant.shown_by == PLAIN.replace("inference", "eval")}
    assert found.failed["scale_missing"] == {("forward_parity", PLAIN)}
    assert "scale_missing" in shown
    assert "causal_off_by_one" in found.find_unasked()
    assert "mask_inverted" in found.find_survivors()


def describe_set(mutants: dict[str, str]) -> MutantNames:
    """Return the names of a mutant set that a worker would send.

    It has ``mutants``, the equivalent mutant "same" and the correct variant "right".
    ``mutants`` maps the name of each mutant to the check that should kill it.
    """
    operators = dict.fromkeys([*mutants, "same", "right"], "multihead")
    return MutantNames(mutants=mutants, equivalents=["same"], variants=["right"], operators=operators)


def test_only_survivors_run_on_compiled_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed mutants and correct variants do not run on compiled cases, because compiling takes seconds.

    A killed mutant still runs on a compiled case if the check that it names applies to compiled cases only.
    """
    compiled = PLAIN.replace("inference", "exported")
    checks_of = {PLAIN: ("forward_parity",), compiled: ("compiled_parity",)}
    plans = [Plan(case=case, checks=checks, missing=None, flop=0) for case, checks in checks_of.items()]
    names_of: dict[str, list[str]] = {}

    class FakeWorker:
        def ask(self, request: FindFailingChecks) -> Any:
            names_of[request.case] = list(request.names)
            return {name: ["forward_parity"] for name in request.names if name in ("a", "traced")}

    @contextmanager
    def fake_workers(count: int, operators: Sequence[str]) -> Iterator[Any]:
        assert operators == ["multihead"]
        mutants = {"a": "forward_parity", "b": "forward_parity", "traced": "compiled_parity"}
        yield [FakeWorker()] * count, describe_set(mutants)

    monkeypatch.setattr(mutation, "_mutation_workers", fake_workers)
    matrix = run_mutants(plans, set(checks_of), progress=NoProgress(), jobs=1)
    assert names_of == {PLAIN: ["a", "b", "traced", "same", "right"], compiled: ["b", "traced"]}
    assert matrix.find_survivors() == ["b"]


def test_for_the_score_a_mutant_runs_until_its_named_check_kills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the mutation score, a mutant runs on further cases until it fails the check that it names.

    A failure of another check does not end this. Equivalent mutants and correct variants do not run at all.
    """
    other = PLAIN.replace("inference", "eval")
    plans = [Plan(case=case, checks=("forward_parity",), missing=None, flop=0) for case in (PLAIN, other)]
    names_of: dict[str, list[str]] = {}

    class FakeWorker:
        def ask(self, request: FindFailingChecks) -> Any:
            names_of[request.case] = list(request.names)
            return {"a": ["forward_parity"], "b": ["repeats_itself"]}

    @contextmanager
    def fake_workers(count: int, operators: Sequence[str]) -> Iterator[Any]:
        yield [FakeWorker()] * count, describe_set({"a": "forward_parity", "b": "forward_parity"})

    monkeypatch.setattr(mutation, "_mutation_workers", fake_workers)
    matrix = run_mutants(plans, {PLAIN, other}, progress=NoProgress(), whole=False, jobs=1)
    assert names_of == {PLAIN: ["a", "b"], other: ["b"]}
    assert (matrix.find_caught_by("forward_parity"), matrix.find_killed_elsewhere()) == (["a"], ["b"])
