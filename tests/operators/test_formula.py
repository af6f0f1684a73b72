"""Tests of a user-defined operator: the shipped example, found by its entry points and checked against its formula."""

import importlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function, read_checks
from attnbench.checks.evaluation.verdict import evaluate
from attnbench.checks.observations import deserialize, serialize
from attnbench.checks.requirement import applies
from attnbench.interface import GENERAL_CHAPTERS
from attnbench.kernel import from_call
from attnbench.oracle.expected import CaseOracle
from commands import run_new_process

EXAMPLE = Path(__file__).parents[2] / "examples" / "linear_attention"


@pytest.fixture(scope="module")
def example() -> Iterator[SimpleNamespace]:
    """Return the example's operator and implementations, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        modules = [importlib.import_module(f"linear_attention.{name}") for name in ("operator", "implementations")]
        yield SimpleNamespace(**{name: getattr(module, name) for module in modules for name in module.__all__})


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return folders in which the example is installed with the entry points of its pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path_factory.mktemp("path") / f"linear_attention-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, entries in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return [info.parent, EXAMPLE]


def run_attnbench(distribution: list[Path], *words: str, cwd: Path) -> str:
    """Run a command that must exit with 0, and return its standard output."""
    done = run_new_process(*words, cwd=cwd, search=distribution)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_checks(example: SimpleNamespace, implementation: Any, case: Case) -> dict[str, Any]:
    """Return the findings of all checks that apply to a case, evaluated in this process."""
    operator = example.OPERATOR
    case_oracle = CaseOracle(case, operator, case.dtype, lambda: operator.inputs(case))
    found = {}
    for name, check in read_checks().items():
        if check.chapter in operator.chapters and applies(load_check_function(name), case, operator):
            observations = list(
                load_check_function(name)(Candidate(implementation, operator, case, operator.inputs(case)))
            )
            found[name] = evaluate(name, deserialize(serialize(observations)), case_oracle, implementation.policies)
    return found


def test_everything_that_it_does_not_define_has_a_default(example: SimpleNamespace) -> None:
    """The example defines its name, problem, suite, inputs, formula and a check; all else has a default."""
    operator = example.OPERATOR
    (case, *_) = operator.suite("quick")
    inputs = operator.inputs(case)
    assert operator.chapters == (*GENERAL_CHAPTERS, "linear_attention.averaging")
    assert operator.case_transforms is None
    assert (operator.missing(case), operator.axes(case, "output"), operator.fault_models(case, ["output"])) == (
        None,
        (),
        (),
    )
    assert (operator.length(case), operator.work(case).pairs) == (7, 2 * 5 * 7)
    assert inputs.cotangents["output"].shape == (2, 5, 8)
    assert [path.keys() for path in operator.yardsticks(case, inputs)] == [operator.evaluate(case, inputs).keys()]
    assert torch.equal(
        operator.reference(case, inputs)(**inputs.arguments()), operator.evaluate(case, inputs)["output"]
    )


@pytest.mark.parametrize("name", ["FROM_THE_LEFT", "FROM_THE_RIGHT"])
def test_both_orders_of_summation_pass_every_check(example: SimpleNamespace, name: str) -> None:
    """Summation from the left and from the right both pass on every case of the suite quick."""
    for case in example.OPERATOR.suite("quick"):
        found = run_checks(example, getattr(example, name), case)
        assert {check: finding for check, finding in found.items() if finding.status != "passed"} == {}
        assert {"forward_parity", "strided_inputs", "inputs_untouched", "repeats_itself"} <= found.keys()


def test_a_wrong_implementation_fails(example: SimpleNamespace) -> None:
    """An implementation that leaves out the division (the normalization) has wrong outputs and gradients."""

    def undivided(query: Any, key: Any, value: Any) -> Any:
        q, k = (torch.nn.functional.elu(tensor) + 1 for tensor in (query, key))
        return q @ (k.mT @ value)

    wrong = from_call(undivided, operator="linear_attention")
    found = run_checks(example, wrong, example.OPERATOR.suite("quick")[0])
    failed = {check for check, finding in found.items() if finding.status == "failed"}
    assert {"forward_parity", "input_gradients"} <= failed
    assert failed <= {"forward_parity", "input_gradients", "strided_inputs"}


def test_parameters_are_handed_to_the_function() -> None:
    """Parameters are passed by name together with the arguments of the call, and get gradients under these names."""
    from attnbench.kernel import CalledModule

    module = CalledModule(lambda w, x: w * x, {"w": torch.tensor([2.0])})
    output = module(x=torch.tensor([3.0]))
    output.sum().backward()
    assert (output.item(), module.w.grad.item()) == (6.0, 3.0)


@pytest.mark.extended
def test_the_command_line_finds_operator_and_implementations(distribution: list[Path], tmp_path: Path) -> None:
    """An installed implementation is listed and checked by name, on the cases of its own operator only."""
    (row,) = json.loads(
        run_attnbench(distribution, "list", "linear_from_the_right", "--support", "--json", "-", cwd=tmp_path)
    )["implementations"]
    assert (row["supported"], row["cases"], row["fault"]) == (24, 24, "")
    words = ("conform", "linear_from_the_right", "--check", "forward_parity", "--json", "-")
    found = json.loads(run_attnbench(distribution, *words, cwd=tmp_path))["findings"]
    assert {finding["case"].partition("/")[0] for finding in found} == {"linear_attention"}
    assert {finding["status"] for finding in found} == {"passed"}
    assert len(found) == 8


def test_its_own_check_runs_on_every_case(distribution: list[Path], tmp_path: Path) -> None:
    """The example's own check applies to every case of its operator, and both implementations pass."""
    words = ("conform", "linear_from_the_left", "linear_from_the_right", "--check", "repeated_keys_change_nothing")
    found = json.loads(run_attnbench(distribution, *words, "--json", "-", cwd=tmp_path))["findings"]
    assert {finding["status"] for finding in found} == {"passed"}
    assert len(found) == 16


@pytest.mark.extended
def test_its_mutants_are_killed_and_the_score_equals_the_shipped_one(distribution: list[Path], tmp_path: Path) -> None:
    """Each mutant is killed by the check that the mutant names; the mutation score equals the shipped score."""
    words = ("conform", "--mutants", "--suite", "full", "--operator", "linear_attention", "--json", "-")
    found = json.loads(run_attnbench(distribution, *words, cwd=tmp_path))
    assert (found["survivors"], found["not_by_the_named_check"]) == ([], [])
    assert len(found["mutants"]) >= 8
    shipped = json.loads((EXAMPLE / "linear_attention" / "mutation_scores.json").read_text())
    assert found["scores"] == shipped["scores"]
