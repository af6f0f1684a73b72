"""Chapter *averaging* of the checks: properties that hold because the output is a weighted average of the values."""

from collections.abc import Iterator
from dataclasses import replace

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Observation
from attnbench.checks.requirement import check, is_eager
from attnbench.checks.runs import compare_runs

__all__ = ["repeated_keys_change_nothing"]


@check(when=is_eager)
def repeated_keys_change_nothing(candidate: Candidate) -> Iterator[Observation]:
    """The output stays the same if every key and its value are given twice."""
    case, tensors = candidate.case, candidate.inputs.tensors
    twice = {name: tensors[name].detach().repeat(1, 2, 1) for name in ("key", "value")}
    outputs = candidate.run_on(
        case.with_problem(keys=2 * case.problem.keys), replace(candidate.inputs, tensors=tensors | twice, cotangents={})
    )
    expected = {name: value.detach() for name, value in candidate.outputs.items()}
    yield from compare_runs(outputs, expected, "with every key twice (compared with every key once)")
