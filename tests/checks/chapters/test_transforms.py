"""Tests of the checks of the chapter *transforms* on modules that are not in the mutant set."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.checks.catalogue import read_checks
from attnbench.interface import Policies
from attnbench.masks import softmax_over_visible
from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.autograd import Once
from attnbench.mutants.multihead.decorator import build_case_id
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.operators.attention_core.suites import PLAIN
from attnbench.plugins.registry import load, load_problem_types
from attnbench.records.outcome_facts import CannotJudge
from attnbench.records.value_facts import ConditionViolated, PolicyDeviation

if TYPE_CHECKING:
    from conftest import Conformance

TRANSFORMS = [check.name for check in read_checks().values() if check.chapter == "transforms"]


def case(**changes: Any) -> Case:
    """Return the problem CROSS in float32 and mode eval, with some fields changed."""
    return Case.parse(build_case_id(**changes), load_problem_types())


def judge(
    conformance: "Conformance", module: type[Formula], one: Case, policies: Policies | None = None
) -> dict[str, str]:
    """Return the status of each check of the chapter on a module."""
    findings = conformance.findings(ModuleImplementation(module, policies=policies), one, TRANSFORMS)
    return {finding.check: finding.status for finding in findings}


@pytest.mark.parametrize("mask", ["none", "pad", "padempty", "bool2d", "float3d+padfloat", "causal"])
def test_a_correct_module_passes(conformance: "Conformance", mask: str) -> None:
    """Attention in plain operators of torch passes every check, with masks of every kind."""
    found = judge(conformance, Formula, case(mask=mask, need_weights=True))
    assert found == dict.fromkeys(TRANSFORMS, "passed")


@pytest.mark.parametrize("changes", [{"self_attention": True, "keys": 5}, {"key_is_value": True}])
def test_one_tensor_as_several_arguments_passes(conformance: "Conformance", changes: dict[str, Any]) -> None:
    """A tensor that is passed as several arguments is mapped and differentiated once."""
    assert judge(conformance, Formula, case(**changes)) == dict.fromkeys(TRANSFORMS, "passed")


def test_attention_on_split_heads_passes(conformance: "Conformance") -> None:
    """The checks apply to an operator without parameters; under vmap, lengths are common to all examples."""
    one = Case(operator="attention_core", problem=PLAIN.change(mask="ragged"), dtype="float32", mode="eval")
    findings = conformance.findings(ModuleImplementation(CoreFormula, operator="attention_core"), one, TRANSFORMS)
    assert {finding.status for finding in findings} == {"passed"}


def _is_transformed() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None  # torch has no public function


class _DropsPadding(Formula):
    def read_padding(self, padding: Tensor) -> Tensor | None:
        return None if _is_transformed() else padding


class _HalvesGradients(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        logits = super().score(q, k)
        return 0.5 * logits + 0.5 * logits.detach() if _is_transformed() else logits


class _SharesMask(torch.autograd.Function):
    """logits + mask, where a batching rule adds the mask of the first example to every example."""

    @staticmethod
    def forward(logits: Tensor, mask: Tensor) -> Tensor:
        """Return the sum."""
        return logits + mask

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # autograd's signature
        """Return the gradient of the logits."""
        return gradient, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], logits: Tensor, mask: Tensor) -> tuple[Tensor, int]:
        """Return the sum for every example."""
        return logits.movedim(in_dims[0] or 0, 0) + (mask if in_dims[1] is None else mask.select(in_dims[1], 0)), 0


class _SharesMaskUnderVmap(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        added = torch.zeros_like(mask, dtype=logits.dtype).masked_fill(~mask, float("-inf"))
        return _SharesMask.apply(logits, added)  # type: ignore[no-any-return, no-untyped-call]


class _Softmax(torch.autograd.Function):
    """Softmax whose derivative of forward mode lacks the mean of the tangents."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor) -> Tensor:
        """Return the attention weights."""
        return softmax_over_visible(logits)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # autograd's signature
        """Keep the weights."""
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient of the logits."""
        (shares,) = ctx.saved_tensors
        return shares * (gradient - (gradient * shares).sum(dim=-1, keepdim=True))  # type: ignore[no-any-return]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        """Return the tangent of the weights, without the term of the mean."""
        return ctx.saved_tensors[0] * tangent  # type: ignore[no-any-return]


class _PushesForwardWrong(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return _Softmax.apply(logits)  # type: ignore[no-any-return, no-untyped-call]


class _RaisesUnderTransforms(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        # This autograd.Function has no setup_context, which every transform demands.
        return super().score(Once.apply(q), k)  # type: ignore[no-untyped-call]


class _RaisesUnderVmap(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        # Under vmap over masks, a branch on their values raises an exception; torch.func.grad has no masks.
        return super().apply_boolean_mask(logits, mask) if not mask.all() else logits


class _ImplementsNoTransform(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        if _is_transformed():
            raise NotImplementedError("no transform")
        return output, weights


@pytest.mark.parametrize(
    ("module", "caught"),
    [
        (_DropsPadding, set(TRANSFORMS)),
        (_HalvesGradients, {"func_grad_works", "forward_derivatives"}),
        (_SharesMaskUnderVmap, {"vmap_equals_loop"}),
        (_PushesForwardWrong, {"forward_derivatives"}),
        (_RaisesUnderVmap, {"vmap_equals_loop"}),
        (_RaisesUnderTransforms, set(TRANSFORMS)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fault_under_a_transform_is_caught(
    conformance: "Conformance", module: type[Formula], caught: set[str], dtype: str
) -> None:
    """Each fault fails the checks of the transforms under which it shows, and no other check of the chapter."""
    found = judge(conformance, module, case(mask="pad", dtype=dtype, need_weights=True))
    assert {check for check, status in found.items() if status == "failed"} == caught
    assert set(found) == set(TRANSFORMS)


def test_masks_of_their_own_are_what_shows_a_mask_that_is_shared(conformance: "Conformance") -> None:
    """A finding says whether the examples had masks of their own."""
    finding = conformance.finding(ModuleImplementation(_SharesMaskUnderVmap), case(mask="pad"), "vmap_equals_loop")
    hows = {fact.compared.how.key for fact in finding.facts if hasattr(fact, "compared")}
    assert hows == {"vmap_of_masks"}


def test_an_exception_is_a_finding_that_names_the_policy(conformance: "Conformance") -> None:
    """An exception under vmap alone is quoted, with the policy that would declare it."""
    finding = conformance.finding(ModuleImplementation(_RaisesUnderVmap), case(mask="pad"), "vmap_equals_loop")
    violations = [fact.violation.key for fact in finding.facts if isinstance(fact, ConditionViolated)]
    (deviation,) = (fact for fact in finding.facts if isinstance(fact, PolicyDeviation))
    assert violations == ["vmap_of_masks_raised"]
    assert [(policy.name, policy.seen) for policy in deviation.policies] == [("transforms", "refused")]


def test_the_policy_turns_an_exception_into_unsupported(conformance: "Conformance") -> None:
    """With transforms="refused", a call under a transform may raise; the check is then unsupported."""
    found = judge(conformance, _RaisesUnderTransforms, case(mask="pad"), Policies(transforms="refused"))
    assert found == dict.fromkeys(TRANSFORMS, "unsupported")


def test_the_policy_excuses_no_wrong_numbers(conformance: "Conformance") -> None:
    """With transforms="refused", a wrong result under a transform is wrong all the same."""
    found = judge(conformance, _DropsPadding, case(mask="pad"), Policies(transforms="refused"))
    assert found == dict.fromkeys(TRANSFORMS, "failed")


class NaNInFullyMaskedRows(Formula):
    """A plain softmax, whose derivative of forward mode is NaN where the output is."""

    def normalise(self, logits: Tensor) -> Tensor:
        """Return the softmax, NaN in a row of minus infinities."""
        return torch.softmax(logits, dim=-1)


def test_a_declared_nan_row_has_no_derivative_of_forward_mode(conformance: "Conformance") -> None:
    """The derivative of the sum over all rows would be NaN."""
    one = case(mask="bool2d+padempty")
    declared = judge(conformance, NaNInFullyMaskedRows, one, Policies(hidden_rows="nan", hidden_row_gradients="nan"))
    assert declared["forward_derivatives"] == "unsupported"
    assert set(declared.values()) <= {"passed", "unsupported"}


def test_what_the_reference_cannot_do_is_not_demanded(conformance: "Conformance") -> None:
    """Without weights the reference has no derivative of forward mode, so an exception there is no failure."""
    finding = conformance.finding(ModuleImplementation(_RaisesUnderTransforms), case(), "forward_derivatives")
    (fact,) = finding.facts
    assert finding.status == "unsupported"
    assert isinstance(fact, CannotJudge)
    assert fact.why.key == "reference_not_transformed"


def test_not_implemented_is_a_refusal(conformance: "Conformance") -> None:
    """The reference itself, and a module that raises NotImplementedError, are unsupported, and not failed."""
    finding = conformance.finding(load("torch_mha"), case(), "forward_derivatives")
    assert finding.status == "unsupported"
    found = judge(conformance, _ImplementsNoTransform, case(need_weights=True))
    assert found == dict.fromkeys(TRANSFORMS, "unsupported")
