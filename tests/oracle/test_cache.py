"""Tests of the oracle cache: inputs and expected values are computed once, and kept in memory or on disk."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function
from attnbench.checks.evaluation.causes import Causes
from attnbench.checks.observations import serialize
from attnbench.interface import Policies
from attnbench.mutants.mutant import load_mutant_set
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.suites import CROSS
from attnbench.oracle.cache import OracleCache
from attnbench.oracle.disk_cache import DiskCache
from attnbench.oracle.expected import CaseOracle
from attnbench.oracle.inputs import load_inputs
from attnbench.processes.oracle_requests import DescribeCases, DrawInputs
from attnbench.records.types import Finding
from attnbench.workers.oracle_worker import OracleWorker

# Checks whose findings depend on expected values, allowances, probes and fault models.
COMPARING = ("forward_parity", "input_gradients", "effective_scale", "effective_gradient_scale")


class CountingOperator:
    """The operator ``multihead``, counting the calls of each of its methods."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(OPERATOR, name)
        if not callable(found) or isinstance(found, type):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return found(*arguments, **named)

        return call


def case(seed: int = 0, **common: Any) -> Case:
    """Return a case that has fully masked rows and returns attention weights."""
    one = Case(operator="multihead", problem=CROSS, mode="inference").with_problem(
        seed=seed, mask="bool2d+padempty", need_weights=True
    )
    return one.with_fields(**common)


@pytest.fixture
def operator() -> Any:
    """Return the operator ``multihead`` with counted calls."""
    return CountingOperator()


def test_inputs_are_drawn_once(tmp_path: Path, operator: Any) -> None:
    """All modes of a case share one file of inputs, which the oracle uses too; another dtype gets another file."""
    cache = OracleCache(tmp_path)
    path = cache.get_inputs_file(case(), operator)
    case_oracle = cache.get_case_oracle(case(), operator, "float32")
    assert cache.get_inputs_file(case(mode="train"), operator) == path
    assert cache.get_inputs_file(case(dtype="float64"), operator) != path
    assert operator.calls["inputs"] == 2
    assert torch.equal(case_oracle.inputs.tensors["query"], OPERATOR.inputs(case()).tensors["query"])


def test_expected_values_are_computed_once(tmp_path: Path, operator: Any) -> None:
    """A second request with the same precision evaluates nothing; another precision gives other allowances."""
    cache = OracleCache(tmp_path)
    first = cache.get_case_oracle(case(), operator, "float32")
    evaluations = operator.calls["evaluate"]
    assert cache.get_case_oracle(case(), operator, "float32") is first
    assert operator.calls["evaluate"] == evaluations
    assert cache.get_case_oracle(case(), operator, "tf32").expected.allowances != first.expected.allowances
    assert operator.calls["evaluate"] == 2 * evaluations


def test_expected_values_beyond_the_memory_budget_are_on_disk(tmp_path: Path, operator: Any) -> None:
    """Expected values on disk are restored without evaluating the oracle; inputs are read from the file of inputs."""
    cache = OracleCache(tmp_path, memory_bytes=1)
    first = cache.get_case_oracle(case(0), operator, "float32").expected
    cache.get_case_oracle(case(1), operator, "float32")
    before = Counter(operator.calls)
    again = cache.get_case_oracle(case(0), operator, "float32")
    assert again.expected is not first
    assert again.expected.allowances == first.allowances
    for name, tensor in first.quantities.items():
        assert torch.equal(again.expected.quantities[name], tensor)
    for name, rows in first.hidden_rows.items():
        assert torch.equal(again.expected.hidden_rows[name], rows)
    assert again.inputs.options == OPERATOR.inputs(case(0)).options
    assert (operator.calls["evaluate"], operator.calls["inputs"]) == (before["evaluate"], before["inputs"])


def test_expected_values_that_do_not_fit_on_disk_are_computed_again(tmp_path: Path, operator: Any) -> None:
    """Without room in memory and on disk, the oracle is evaluated again, and no file is written."""
    cache = OracleCache(tmp_path, memory_bytes=1, disk_bytes=0)
    cache.get_case_oracle(case(0), operator, "float32")
    cache.get_case_oracle(case(1), operator, "float32")
    before = operator.calls["evaluate"]
    cache.get_case_oracle(case(0), operator, "float32")
    assert operator.calls["evaluate"] > before
    assert list(tmp_path.glob("*.expected")) == []


@pytest.fixture
def known_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the counting operator, which is outside a package, have the keys of the operator ``multihead``."""
    monkeypatch.setattr("attnbench.oracle.result_key._list_packages", lambda _: frozenset())


@pytest.mark.usefixtures("known_sources")
def test_expected_values_outlive_the_run(tmp_path: Path, operator: Any) -> None:
    """A later run reads expected values without evaluating the oracle, and they are the same bytes."""
    caches = []
    for run in ("first", "second"):
        (tmp_path / run).mkdir()
        caches.append(OracleCache(tmp_path / run, kept=DiskCache(tmp_path / "kept")))
    first = caches[0].get_case_oracle(case(), operator, "float32").expected
    evaluations = operator.calls["evaluate"]
    again = caches[1].get_case_oracle(case(), operator, "float32").expected
    assert operator.calls["evaluate"] == evaluations
    assert again.allowances == first.allowances
    for name, tensor in first.quantities.items():
        assert torch.equal(again.quantities[name], tensor)
        assert again.quantities[name].stride() == tensor.stride()
    for name, rows in first.hidden_rows.items():
        assert torch.equal(again.hidden_rows[name], rows)


@pytest.mark.usefixtures("known_sources")
def test_expected_values_of_other_tensors_outlive_the_run(tmp_path: Path, operator: Any) -> None:
    """A later run reads what a case gives with other tensors or a dropout mask; each tensor has values of its own."""
    inputs = OPERATOR.inputs(case())
    query, keep = inputs.tensors["query"], torch.ones((), dtype=torch.float64)
    found = []
    for run in ("first", "second"):
        (tmp_path / run).mkdir()
        cache = OracleCache(tmp_path / run, kept=DiskCache(tmp_path / "kept"))
        case_oracle = cache.get_case_oracle(case(), operator, "float32")
        before = operator.calls["evaluate"]
        one, other = (case_oracle.compute_with_tensors({"query": factor * query}) for factor in (2.0, 3.0))
        dropped = [case_oracle.compute_with_dropout(mask) for mask in (keep, 0 * keep)]
        assert (operator.calls["evaluate"] > before) == (run == "first")
        found.append([expected.quantities["output"] for expected in (one, other, *dropped, case_oracle.expected)])
    first, second = found
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert len({repr(output.tolist()) for output in first[:4]}) == 4
    exact = CaseOracle(case(), OPERATOR, "float32", lambda: inputs).compute_with_tensors({"query": 2.0 * query})
    assert torch.equal(first[0], exact.quantities["output"])


@pytest.mark.usefixtures("known_sources")
def test_expected_values_of_tensors_drawn_once_are_not_stored(tmp_path: Path, operator: Any) -> None:
    """They are computed once for all checks of a call, and not stored; their allowed errors are those of the case."""
    kept = DiskCache(tmp_path / "kept")
    case_oracle = OracleCache(tmp_path, kept=kept).get_case_oracle(case(), operator, "float32")
    query = OPERATOR.inputs(case()).tensors["query"]
    stored = case_oracle.compute_with_tensors({"query": 2.0 * query})
    entries, before = kept.measure().entries, operator.calls["evaluate"]
    once = case_oracle.compute_once({"query": 3.0 * query})
    assert case_oracle.compute_once({"query": 3.0 * query}) is once
    assert once.allowances == case_oracle.expected.allowances
    after = operator.calls["evaluate"]
    other = case_oracle.compute_once({"query": 2.0 * query})
    assert operator.calls["evaluate"] == after + 1 > before
    assert torch.equal(other.quantities["output"], stored.quantities["output"])
    assert not torch.equal(once.quantities["output"], stored.quantities["output"])
    own = case_oracle.compute_once({"query": 2.0 * query}, own_allowances=True)
    assert case_oracle.compute_once({"query": 2.0 * query}, own_allowances=True) is own
    assert own.allowances == stored.allowances != case_oracle.expected.allowances
    assert kept.measure().entries == entries


@pytest.mark.usefixtures("known_sources")
def test_damaged_expected_values_are_computed_again(tmp_path: Path, operator: Any) -> None:
    """A later run that finds a damaged file evaluates the oracle, and repairs the file."""
    kept = DiskCache(tmp_path / "kept")
    OracleCache(tmp_path, kept=kept).get_case_oracle(case(), operator, "float32")
    (path,) = kept.folder.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    evaluations = operator.calls["evaluate"]
    OracleCache(tmp_path, kept=kept).get_case_oracle(case(), operator, "float32")
    assert operator.calls["evaluate"] == 2 * evaluations
    assert path.read_bytes() == content


def test_an_operator_of_unknown_sources_is_not_stored(
    tmp_path: Path, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expected values of an operator outside a package are computed in every run."""
    monkeypatch.setattr(CountingOperator, "__module__", "operator_in_a_single_file")
    kept = DiskCache(tmp_path / "kept")
    OracleCache(tmp_path, kept=kept).get_case_oracle(case(), operator, "float32")
    assert not kept.folder.exists()


def _observe(run: OracleWorker, one: Case) -> dict[str, Any]:
    """Return what the checks in ``COMPARING`` observe of an attention with the scale 1/√E instead of 1/√D."""
    wrong = next(each for each in load_mutant_set(OPERATOR).implementations() if each.name == "scale_of_the_model")
    candidate = Candidate(wrong, OPERATOR, one, load_inputs(run.draw_inputs(DrawInputs(case=one.id))))
    return {
        check: serialize(list(load_check_function(check)(candidate)))
        for check in run.describe_cases(DescribeCases(cases=[one.id]))[0].checks
        if check in COMPARING
    }


def test_findings_are_the_same_with_and_without_the_cache(tmp_path: Path, drawn_cases: list[Case]) -> None:
    """Without cache, with an empty one and with a full one, every finding is the same, in every digit and word.

    The implementation is wrong, so that there are failures with numbers, places and diagnoses.
    """
    chosen = [*drawn_cases[::3], *(one for one in drawn_cases if one.problem.probed)]
    kept = DiskCache(tmp_path / "kept")
    runs = []
    for number, cache in enumerate((None, kept, DiskCache(tmp_path / "kept"))):
        (tmp_path / str(number)).mkdir()
        runs.append(OracleWorker(tmp_path / str(number), kept=cache))
    seen: list[list[dict[str, Finding]]] = [[], [], []]
    for one in chosen:
        observations = _observe(runs[0], one)
        for findings, run in zip(seen, runs, strict=True):
            findings.append(run.evaluate_observations(one.id, observations, Policies(), Causes()))
    assert kept.measure().entries == len({one.id for one in chosen})
    assert repr(seen[0]) == repr(seen[1]) == repr(seen[2])
    text = repr(seen[0])
    for part in ("LooksLike(", "ScaleOff("):
        assert part in text
