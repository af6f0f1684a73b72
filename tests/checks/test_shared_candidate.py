"""A candidate worker runs all checks of a case on one candidate, so no check may leave the candidate changed."""

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from attnbench.candidate.candidate import Malformed
from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function
from attnbench.interface import Refusal
from attnbench.mutants.multihead.decorator import build_case_id
from attnbench.plugins.registry import load, load_problem_types

if TYPE_CHECKING:
    from conftest import Conformance


PLAIN: dict[str, Any] = {"mask": "bool2d+pad", "need_weights": True}
# The parameters of the third case have a subnormal number of float16, which half and double of it do not restore.
CASES: tuple[dict[str, Any], ...] = (
    PLAIN | {"mode": "inference"},
    PLAIN | {"mode": "train"},
    {"mask": "float2d+pad", "mode": "inference", "dtype": "float16"},
)


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize("changes", CASES, ids=lambda changes: build_case_id(**changes))
@pytest.mark.parametrize("name", ["reshaped", "torch_mha"])
def test_no_check_leaves_the_candidate_changed(conformance: "Conformance", name: str, changes: dict[str, Any]) -> None:
    """After each check, the candidate has the parameters and inputs that it began with, and gives the same output."""
    case = Case.parse(build_case_id(**changes), load_problem_types())
    candidate = conformance.candidate(load(name), case)
    output = candidate.outputs["output"].detach().clone()
    tensors = candidate.inputs.tensors | candidate.parameters()
    before = {key: tensor.detach().clone() for key, tensor in tensors.items()}
    for check in conformance.applicable(case):
        with contextlib.suppress(Malformed, Refusal):
            list(load_check_function(check)(candidate))
        after = candidate.inputs.tensors | candidate.parameters()
        assert [key for key in before if after[key] is not tensors[key] or not after[key].equal(before[key])] == [], (
            check
        )
        assert candidate.run()["output"].equal(output), check
