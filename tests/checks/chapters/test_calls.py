"""Tests of the checks of the chapter *calls* on modules that are not in the mutant set."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Implementation
from attnbench.kernel import from_kernel
from attnbench.mutants.multihead.decorator import build_case_id
from attnbench.mutants.multihead.formula import Formula
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.plugins.adapters import adopt
from attnbench.plugins.registry import load_operator, load_problem_types
from attnbench.records.outcome_facts import CannotJudge
from attnbench.records.value_facts import ConditionViolated, phrase

if TYPE_CHECKING:
    from conftest import Conformance

CALLS = ("positional_arguments", "default_arguments", "initial_parameters")


def case(**changes: Any) -> Case:
    """Return the problem CROSS in float32, with some fields changed."""
    return Case.parse(build_case_id(**changes), load_problem_types())


class _KeywordsOnly(Formula):
    def forward(self, **named: Any) -> Any:  # type: ignore[override]
        return super().forward(**named)


class _TokensByPosition(Formula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Any = None, **named: Any) -> Any:  # type: ignore[override]
        return super().forward(query, key, value, attn_mask=attn_mask, **named)


class _Few(nn.MultiheadAttention):
    """Takes neither key_padding_mask nor is_causal, so that attn_mask has another position."""

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
    ) -> Any:
        return super().forward(query, key, value, need_weights=need_weights, attn_mask=attn_mask)


class _Closure(Implementation):
    name = "closure"

    def build(self, reference: Any) -> Any:
        return Formula(reference)

    def prepare(self, module: Any, case: Case, inputs: Any) -> Any:
        def call(**named: Any) -> Any:
            return module(**named)

        return call


def test_a_call_by_keywords_only_is_refused_with_a_reason(conformance: "Conformance") -> None:
    """A call that takes no positions by its signature is unsupported, not failed; the other checks apply to it."""
    for implementation in (ModuleImplementation(_KeywordsOnly), _Closure()):
        finding = conformance.finding(implementation, case(mask="bool2d"), "positional_arguments")
        assert (finding.status, finding.facts) == (
            "unsupported",
            (CannotJudge(why=phrase("call_by_keyword")),),
        )
        for check in CALLS[1:]:
            assert conformance.finding(implementation, case(mask="bool2d"), check).status == "passed"


@pytest.mark.parametrize("check", CALLS)
@pytest.mark.parametrize("mode", ["eval", "train", "inference"])
def test_right_calls_pass(conformance: "Conformance", check: str, mode: Any) -> None:
    """Modules with fewer arguments, keyword-only masks or the reference's signature, and kernels, pass every check."""
    kernel = from_kernel(lambda q, k, v, *, scale: torch.softmax(q @ k.mT * scale, dim=-1) @ v, name="unnamed")
    one, plain = case(mask="bool2d", mode=mode), case(mode=mode)
    for implementation, shown in (
        (ModuleImplementation(_TokensByPosition), one),
        (ModuleImplementation(Formula), one),
        (adopt(nn.MultiheadAttention, "reference"), one),
        (adopt(_Few, "few"), one),
        (kernel, plain),
    ):
        finding = conformance.finding(implementation, shown, check)
        assert finding.status == "passed", finding


def test_initial_parameters_are_those_of_the_constructor() -> None:
    """They are the reference's own: biases are 0 and input weights within Xavier's bound; each call gives the same."""
    operator, one = load_operator("multihead"), case(add_bias_kv=True, dtype="bfloat16")
    inputs = operator.inputs(one)
    state = torch.get_rng_state()
    found = operator.initial_parameters(one, inputs)
    assert found is not None
    assert torch.equal(state, torch.get_rng_state())
    assert found.keys() == inputs.parameters.keys()
    assert not found["in_proj_bias"].any()
    assert not found["out_proj.bias"].any()
    bound = (6 / (24 + 72)) ** 0.5
    assert 0.9 * bound < float(found["in_proj_weight"].abs().max()) <= 1.01 * bound
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    again = operator.initial_parameters(one, inputs)
    assert again is not None
    assert all(torch.equal(found[name], again[name]) for name in found)


class _Unwritten(nn.MultiheadAttention):
    """Leaves the memory of out_proj.weight unwritten."""

    def __init__(self, *sizes: Any, **named: Any) -> None:
        super().__init__(*sizes, **named)
        self.out_proj.weight = nn.Parameter(torch.empty_like(self.out_proj.weight))


class _Narrow(nn.MultiheadAttention):
    """Has one row too few in bias_k, and no bias_v."""

    def __init__(self, *sizes: Any, **named: Any) -> None:
        super().__init__(*sizes, **named)
        self.bias_k = nn.Parameter(torch.zeros(1, self.embed_dim))
        self.bias_v = None


class _OnMeta(nn.MultiheadAttention):
    """Is on the device meta until a state is loaded."""

    def __init__(self, *sizes: Any, **named: Any) -> None:
        super().__init__(*sizes, **named, device="meta")


@pytest.mark.parametrize(
    ("module", "key", "names"),
    [
        (_Unwritten, "constructed_not_finite", "out_proj.weight"),
        (_Narrow, "constructed_otherwise", "bias_k, bias_v"),
        (_OnMeta, "constructed_without_memory", "in_proj_bias, in_proj_weight, out_proj.bias, out_proj.weight"),
    ],
)
def test_parameters_that_a_constructor_leaves_wrong_are_reported(
    conformance: "Conformance", module: type[nn.Module], key: str, names: str
) -> None:
    """Unwritten memory, other shapes and parameters without memory fail, before any state is loaded."""
    one = case(mode="train", add_bias_kv=module is _Narrow)
    implementation = _Constructing(module)
    finding = conformance.finding(implementation, one, "constructed_parameters")
    assert finding.status == "failed"
    assert finding.facts == (ConditionViolated(violation=phrase(key, names=names)),)


class _Constructing(ModuleImplementation):
    """Right in every call; the constructor is that of another class."""

    def __init__(self, module: type[nn.Module]) -> None:
        super().__init__(Formula)
        self._other = adopt(module, "other")

    def construct(self, reference: Any) -> Any:
        return self._other.construct(reference)


def test_the_constructor_of_the_reference_passes_and_one_that_is_unknown_is_refused(conformance: "Conformance") -> None:
    """The check restores torch's deterministic mode; without a constructor it is unsupported."""
    one = case(mode="train", kdim=10, vdim=14, add_bias_kv=True)
    reference = adopt(nn.MultiheadAttention, "reference")
    assert conformance.finding(reference, one, "constructed_parameters").status == "passed"
    assert not torch.are_deterministic_algorithms_enabled()
    finding = conformance.finding(ModuleImplementation(Formula), one, "constructed_parameters")
    assert (finding.status, finding.facts) == ("unsupported", (CannotJudge(why=phrase("no_constructor")),))
