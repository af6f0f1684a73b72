"""Tests of the checks of the chapter *refusals* on modules that are not in the mutant set."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.checks.chapters.refusals import make_bad_dtypes, make_bad_shapes
from attnbench.interface import Policies
from attnbench.mutants.multihead.decorator import build_case_id
from attnbench.mutants.multihead.formula import Arguments, Formula
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.plugins.adapters import adopt
from attnbench.plugins.registry import load, load_problem_types
from attnbench.records.value_facts import BitsDiffer, ConditionViolated, phrase

if TYPE_CHECKING:
    from conftest import Conformance

LAYOUTS: list[dict[str, Any]] = [
    {"mask": "bool3d+pad"},
    {"mask": "float2d+padfloat", "batch_first": False, "mode": "train"},
    {"batch": None, "mask": "bool2d", "mode": "inference"},
    {"queries": 7, "self_attention": True, "mask": "pad", "mode": "train"},
    {"queries": 7, "query_is_key": True, "kdim": None, "vdim": 10, "mode": "frozen"},
    {"key_is_value": True, "kdim": 10, "vdim": 10, "add_bias_kv": True},
]


def case(**changes: Any) -> Case:
    """Return the problem CROSS in float32 and mode eval, with some fields changed."""
    return Case.parse(build_case_id(**changes), load_problem_types())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("check", ["bad_shapes_are_refused", "bad_dtypes_are_refused", "refusals_leave_no_trace"])
def test_the_reference_refuses_every_call_that_must_be_refused(
    conformance: "Conformance", check: str, layout: dict[str, Any]
) -> None:
    """The reference passes the checks of refusals, apart from its fast path (see the next test)."""
    assert check in conformance.applicable(case(**layout))
    finding = conformance.finding(load("torch_mha"), case(**layout), check)
    assert finding.status == "passed", finding


def test_the_fast_path_of_the_reference_accepts_any_mask_with_the_right_number_of_elements(
    conformance: "Conformance",
) -> None:
    """In self-attention without gradients, the fast path takes a mask of wrong shape and views it in the right one."""
    fast = case(batch=3, queries=7, self_attention=True, num_heads=2, mask="pad", mode="inference")
    finding = conformance.finding(load("torch_mha"), fast, "bad_shapes_are_refused")
    assert finding.status == "failed"
    assert finding.facts == (ConditionViolated(violation=phrase("mask_of_shape", name="attn_mask", shape="(49,)")),)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_bad_call_has_a_description_of_its_own(conformance: "Conformance", layout: dict[str, Any]) -> None:
    """The descriptions of all bad calls differ, so that a finding names exactly one of them."""
    one = case(**layout)
    inputs = conformance.candidate(ModuleImplementation(Formula), one).inputs
    descriptions = [bad.accepted for bad in (*make_bad_shapes(one, inputs), *make_bad_dtypes(one, inputs))]
    assert len(set(descriptions)) == len(descriptions) > 40


class _HintApplied(Formula):
    """Formula that applies a causal mask if it gets ``is_causal`` without attn_mask."""

    corner = 0

    def read_arguments(self, given: Arguments) -> Arguments:
        if not given["is_causal"] or given["attn_mask"] is not None:
            return given
        queries, keys = (given[name].shape[1] for name in ("query", "key"))
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(1 + self.corner * (keys - queries))
        return given | {"attn_mask": hidden, "is_causal": False}


class _HintAppliedToTheEnd(_HintApplied):
    corner = 1


@pytest.mark.parametrize(
    ("module", "declared", "status"),
    [
        (_HintApplied, "top_left", "passed"),
        (_HintAppliedToTheEnd, "bottom_right", "passed"),
        (_HintAppliedToTheEnd, "top_left", "failed"),
    ],
)
def test_a_hint_without_a_mask_is_refused_or_applied_as_declared(
    conformance: "Conformance", module: type[Formula], declared: Any, status: str
) -> None:
    """A module that applies is_causal without attn_mask must align the mask as its policy ``causal`` declares."""
    implementation = ModuleImplementation(module, policies=Policies(causal=declared))
    assert conformance.finding(implementation, case(), "bad_shapes_are_refused").status == status


class _RefusesAndChanges(Formula):
    """Formula that multiplies query by 0.5 in place if attn_mask has one dimension, and then refuses that mask."""

    def read_arguments(self, given: Arguments) -> Arguments:
        query: Tensor = given["query"]
        if query.is_floating_point() and given["attn_mask"] is not None and given["attn_mask"].dim() == 1:
            with torch.no_grad():
                query.mul_(0.5)
        return given


def test_an_input_that_a_refused_call_changed_is_reported(conformance: "Conformance") -> None:
    """If a refused call has changed its query in place before it raised, the check fails."""
    finding = conformance.finding(ModuleImplementation(_RefusesAndChanges), case(), "refusals_leave_no_trace")
    assert finding.status == "failed"
    (fact,) = finding.facts
    assert isinstance(fact, BitsDiffer)
    assert fact.compared.how == phrase("valid_call_after_refused_calls")


class _TokensOnly(nn.MultiheadAttention):
    """Module whose forward takes only query, key and value: neither a mask nor is_causal."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Call the reference without weights."""
        return super().forward(query, key, value, need_weights=False)[0], None


@pytest.mark.parametrize("check", ["bad_shapes_are_refused", "bad_dtypes_are_refused", "refusals_leave_no_trace"])
def test_a_module_does_not_fail_because_of_arguments_that_it_does_not_have(
    conformance: "Conformance", check: str
) -> None:
    """The checks of refusals pass a module only the arguments that its forward has."""
    finding = conformance.finding(adopt(_TokensOnly, "tokens_only"), case(mode="train"), check)
    assert finding.status == "passed", finding
