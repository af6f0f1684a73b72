"""Tests of the checks of the chapter *protocol* on modules that are not in the mutant set."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function, read_checks
from attnbench.interface import Implementation, Refusal
from attnbench.kernel import from_kernel
from attnbench.mutants.multihead.decorator import build_case_id
from attnbench.mutants.multihead.formula import Arguments, Formula, Result
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.plugins.registry import load_problem_types
from attnbench.records.outcome_facts import CannotJudge
from attnbench.records.value_facts import ConditionViolated, phrase

if TYPE_CHECKING:
    from conftest import Conformance

PROTOCOL = [check.name for check in read_checks().values() if check.chapter == "protocol"]
OWN = [
    check.name
    for check in read_checks().values()
    if check.chapter in ("shapes", "layouts", "invariants", "protocol", "refusals")
]


def case(**changes: Any) -> Case:
    """Return the problem CROSS in float32 and mode eval, with some fields changed."""
    return Case.parse(build_case_id(**changes), load_problem_types())


class Foreign(Implementation):
    """An implementation that builds a function, not a torch module."""

    name = "foreign"

    def build(self, reference: Any) -> Any:
        """Return the reference's forward."""
        return reference.forward


@pytest.mark.parametrize("check", PROTOCOL)
def test_an_implementation_that_is_no_module_is_unsupported(conformance: "Conformance", check: str) -> None:
    """The checks of the chapter are unsupported if what an implementation builds is not a torch module."""
    finding = conformance.finding(Foreign(), case(), check)
    assert (finding.status, finding.facts) == ("unsupported", (CannotJudge(why=phrase("no_module")),))


def test_a_kernel_that_pickle_cannot_store_passes(conformance: "Conformance") -> None:
    """``copies_work`` passes for the module of a lambda kernel: it does not pickle the kernel's function."""
    kernel = from_kernel(lambda q, k, v, *, scale: torch.softmax(q @ k.mT * scale, dim=-1) @ v, name="unnamed")
    assert conformance.finding(kernel, case(), "copies_work").status == "passed"


class _RegistersInCall(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        self.register_buffer("mean", output.detach().mean())
        return output, weights


def test_names_that_a_call_adds_to_the_state_dict_are_reported(conformance: "Conformance") -> None:
    """A call that registers a buffer fails: a state dict saved before the call could not be loaded after it."""
    finding = conformance.finding(ModuleImplementation(_RegistersInCall), case(), "state_dict_round_trip")
    assert finding.status == "failed"
    assert finding.facts == (ConditionViolated(violation=phrase("state_names_changed")),)


class _KeepsItsGraph(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        self.last = output
        return output, weights


def test_a_module_that_keeps_its_output_cannot_be_copied(conformance: "Conformance") -> None:
    """Torch cannot deep-copy a tensor that has a gradient history; the finding quotes torch's error."""
    finding = conformance.finding(ModuleImplementation(_KeepsItsGraph), case(), "copies_work")
    assert finding.status == "failed"
    (fact,) = finding.facts
    assert isinstance(fact, ConditionViolated)
    assert fact.violation.key == "deep_copy_raised"
    assert str(fact.violation.values["raised"]).startswith("RuntimeError: Only Tensors created explicitly by the user")


class _OneTensor(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        if given["query"] is given["key"] is given["value"]:
            return given
        raise Refusal("three tensors where there was one")


class _SingleOnly(ModuleImplementation):
    def unsupported(self, case: Case) -> str | None:
        return None if case.dtype in self.dtypes else "another dtype"

    dtypes = ("float32", "float16")


def test_a_module_is_converted_from_another_dtype_that_it_supports(conformance: "Conformance") -> None:
    """``tensors_are_registered`` passes if the module supports a second dtype, and is unsupported otherwise."""
    implementation = _SingleOnly(Formula)
    assert conformance.finding(implementation, case(), "tensors_are_registered").status == "passed"
    implementation.dtypes = ("float32",)
    finding = conformance.finding(implementation, case(), "tensors_are_registered")
    assert (finding.status, finding.facts) == (
        "unsupported",
        (CannotJudge(why=phrase("single_dtype", dtype="float32")),),
    )


@pytest.mark.parametrize("check", [name for name in OWN if name not in ("packed_inputs", "query_independence")])
def test_one_tensor_under_three_names_stays_one_tensor(conformance: "Conformance", check: str) -> None:
    """If query, key and value are one tensor, they are still one tensor after a check changed the inputs.

    Fast paths depend on it, because they test ``query is key``.
    """
    one = case(batch=3, queries=7, self_attention=True, num_heads=2, mask="float2d+padfloat")
    assert check in conformance.applicable(one)
    assert conformance.finding(ModuleImplementation(_OneTensor), one, check).status == "passed"


@pytest.mark.parametrize("check", OWN)
def test_a_check_leaves_its_candidate_unchanged(conformance: "Conformance", check: str) -> None:
    """A check leaves inputs, parameters and the training mode unchanged: all checks of a case use one candidate."""
    one = case(mask="float2d+padfloat", dropout=0.25, need_weights=True)
    assert check in conformance.applicable(one)
    candidate = conformance.candidate(ModuleImplementation(Formula), one)
    watched = candidate.inputs.tensors | candidate.parameters()
    before = {name: (tensor.detach().clone(), tensor.requires_grad) for name, tensor in watched.items()}
    assert list(load_check_function(check)(candidate))
    for name, (values, tracks) in before.items():
        assert watched[name].detach().equal(values), name
        assert watched[name].requires_grad == tracks
    assert not candidate.module.training
