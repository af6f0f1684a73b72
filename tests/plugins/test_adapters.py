"""Tests of ``adopt``: it makes an implementation of a module class or a function, and refuses unsuitable objects."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies
from attnbench.operators.multihead.suites import CROSS
from attnbench.plugins.adapters import ModuleImplementation, adopt, load_implementation
from attnbench.plugins.registry import PluginError, load_operator
from attnbench.refusals import LacksKeywords

if TYPE_CHECKING:
    from conftest import Conformance


def make_case(mode: Any = "eval", **changes: Any) -> Case:
    """Make a case in float64, batch first, with biases; by default it returns no attention weights and has no mask."""
    return Case(operator="multihead", problem=CROSS, dtype="float64", mode=mode).with_problem(**changes)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention; a function without any keyword."""
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


class Plain(nn.MultiheadAttention):
    """The reference under another class name; this class supports every argument."""


class Narrow(nn.Module):
    """Module whose constructor and forward lack some arguments of the reference."""

    def __init__(self, embed_dim: int, num_heads: int, *, batch_first: bool = False) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(embed_dim, num_heads, batch_first=batch_first)
        for name, parameter in self.inner.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self.out_proj = self.inner.out_proj

    def load_state_dict(self, state: Any, **_: Any) -> Any:
        """Load the reference's state dict, with the reference's parameter names."""
        return self.inner.load_state_dict(state)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        """Compute attention without masks; return no attention weights."""
        return self.inner(query, key, value, need_weights=False)[0], None


class Anything(nn.Module):
    """Module whose signatures accept any arguments."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__()

    def forward(self, **named: Any) -> Any:
        """Return all keywords of the call."""
        return named


class Wrapped(Narrow):
    """Module whose signatures accept any arguments, and pass them all on to ``Narrow``."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Call the forward of ``Narrow``."""
        return super().forward(*arguments, **named)


class CallableKernel:
    """A kernel that is a callable object."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        """Compute attention with the given scale."""
        return torch.softmax(q @ k.mT * scale, dim=-1) @ v


class Declared(Implementation):
    """A subclass of Implementation."""

    name = "declared"


# Accepted objects


def test_an_implementation_is_used_unchanged() -> None:
    """``adopt`` returns an instance of Implementation itself, and instantiates a subclass of Implementation."""
    instance = Declared()
    assert adopt(instance, "x") is instance
    assert type(adopt(Declared, "x")) is Declared


def test_a_function_becomes_a_kernel() -> None:
    """``adopt`` adds projections, heads and layouts around a function; the kernel has the name that the user gave."""
    made = adopt(attention, "mine.py:attention")
    assert made.name == "mine.py:attention"
    assert_is_the_reference(made)


def test_a_module_class_is_built_like_the_reference() -> None:
    """A class with the reference's constructor, forward and parameter names needs no declaration."""
    made = adopt(Plain, "mine.py:Plain")
    assert (made.name, type(made)) == ("mine.py:Plain", ModuleImplementation)
    assert (
        made.unsupported(make_case(add_bias_kv=True, kdim=10, vdim=14, mask="float3d+pad", need_weights=True)) is None
    )
    assert_is_the_reference(made)


def assert_is_the_reference(made: Implementation) -> None:
    """Assert that a built and prepared implementation agrees with the reference."""
    one, operator = make_case(), load_operator("multihead")
    given = operator.inputs(one)
    reference = operator.reference(one, given)
    call = made.prepare(made.build(reference).eval(), one, given)
    expected = reference(**given.arguments())[0]
    torch.testing.assert_close(call(**given.arguments())[0], expected, rtol=1e-12, atol=1e-12)


def test_weights_are_loaded_without_rounding() -> None:
    """A class is constructed in torch's default dtype, but float64 parameters are never rounded to that dtype."""
    one, operator = make_case(add_bias_kv=True), load_operator("multihead")
    given = operator.inputs(one)
    module = adopt(Plain, "x").build(operator.reference(one, given))
    assert module.state_dict().keys() == given.parameters.keys()
    for name, tensor in module.state_dict().items():
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor, given.parameters[name])
        assert not torch.equal(tensor, given.parameters[name].float().double())


def test_a_module_gets_only_arguments_of_its_signatures() -> None:
    """Arguments with default values are not passed to a constructor or a forward that lacks them."""
    made = adopt(Narrow, "x")
    assert made.unsupported(make_case()) is None
    assert_is_the_reference(made)


def test_a_subclass_with_any_keywords_supports_those_of_its_base_class() -> None:
    """``**named`` in a subclass accepts no keyword that the signature of the base class lacks."""
    made = adopt(Wrapped, "x")
    assert made.unsupported(make_case(kdim=10, vdim=14)) == LacksKeywords(keywords=("kdim",), of="constructor")
    assert made.unsupported(make_case(mask="pad")) == LacksKeywords(keywords=("key_padding_mask",), of="forward")
    assert made.unsupported(make_case()) is None
    assert_is_the_reference(made)


def test_a_callable_object_becomes_a_kernel() -> None:
    """The signature of the object's ``__call__`` determines the keywords that the kernel gets."""
    made = adopt(CallableKernel(), "mine.py:KERNEL")
    assert made.unsupported(make_case(mask="pad")) == LacksKeywords(keywords=("mask",), of="kernel")
    assert_is_the_reference(made)


def test_arguments_bound_by_partial_stay_bound() -> None:
    """``functools.partial`` of a kernel or of a class is adopted; arguments that it binds are not passed again."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, scale: float, need_weights: bool, slope: float) -> Any:
        assert (slope, need_weights) == (2.0, False)
        return torch.softmax(q @ k.mT * scale, dim=-1) @ v

    made = adopt(functools.partial(kernel, slope=2.0, need_weights=False), "mine.py:KERNEL")
    assert made.unsupported(make_case(need_weights=True)) == LacksKeywords(keywords=("need_weights",), of="kernel")
    assert_is_the_reference(made)

    class Sloped(Plain):
        def __init__(self, *arguments: Any, slope: float, **named: Any) -> None:
            super().__init__(*arguments, **named)
            assert slope == 2.0

    module = adopt(functools.partial(Sloped, slope=2.0, bias=True), "mine.py:SLOPED")
    assert module.unsupported(make_case(bias=False)) == LacksKeywords(keywords=("bias",), of="constructor")
    assert_is_the_reference(module)


@pytest.mark.parametrize(
    "changes",
    [
        {"dropout": 0.5}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 10, "vdim": 14},
        {"mask": "bool2d"}, {"mask": "pad"}, {"mask": "causal", "is_causal": True}, {"need_weights": True},
        {"need_weights": True, "average_attn_weights": True},
    ],
)  # fmt: skip
def test_a_missing_argument_raises_a_type_error(changes: dict[str, Any]) -> None:
    """An argument that a case needs is passed even to a signature that lacks this argument, so that the call raises."""
    one, operator = make_case(**changes), load_operator("multihead")
    made, given = adopt(Narrow, "x"), operator.inputs(one)
    assert made.unsupported(one) is not None
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        made.prepare(made.build(operator.reference(one, given)), one, given)(**given.arguments())


def test_a_function_without_a_signature_is_an_error() -> None:
    """The keywords of a builtin function are unknown; the error message says to wrap the function in another one."""
    with pytest.raises(PluginError) as raised:
        adopt(torch.nn.functional.scaled_dot_product_attention, "torch:sdpa")
    assert str(raised.value) == (
        "'torch:sdpa' has no signature to read its arguments from: wrap it in a function of (q, k, v) and the keywords "
        "that it needs"
    )


def test_a_module_that_accepts_any_keyword_gets_all_arguments() -> None:
    """A module with ``**named`` in its signatures refuses no case for a missing keyword."""
    made = adopt(Anything, "x")
    assert made.unsupported(make_case(need_weights=True, mask="bool2d+pad", add_zero_attn=True, dropout=0.5)) is None
    given = load_operator("multihead").inputs(make_case(mask="pad"))
    passed = made.prepare(Anything(), make_case(), given)(**given.arguments())
    assert set(passed) == {
        "query", "key", "value", "key_padding_mask", "need_weights", "average_attn_weights", "is_causal",
    }  # fmt: skip


# Refused cases and objects


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dropout": 0.5}, LacksKeywords(keywords=("dropout",), of="constructor")),
        ({"bias": False}, LacksKeywords(keywords=("bias",), of="constructor")),
        ({"add_bias_kv": True}, LacksKeywords(keywords=("add_bias_kv",), of="constructor")),
        ({"add_zero_attn": True}, LacksKeywords(keywords=("add_zero_attn",), of="constructor")),
        ({"kdim": 10, "vdim": 14}, LacksKeywords(keywords=("kdim",), of="constructor")),
        ({"batch_first": False}, None),
        ({"mask": "bool2d"}, LacksKeywords(keywords=("attn_mask",), of="forward")),
        ({"mask": "pad"}, LacksKeywords(keywords=("key_padding_mask",), of="forward")),
        ({"mask": "causal", "is_causal": True}, LacksKeywords(keywords=("attn_mask",), of="forward")),
        ({"need_weights": True}, LacksKeywords(keywords=("need_weights",), of="forward")),
        ({}, None),
    ],
)
def test_a_case_that_needs_a_missing_argument_is_refused(changes: dict[str, Any], reason: LacksKeywords | None) -> None:
    """The refusal names the missing argument; no argument is dropped silently."""
    assert adopt(Narrow, "x").unsupported(make_case(**changes)) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask": "causal", "is_causal": True}, LacksKeywords(keywords=("is_causal",), of="forward")),
        ({"need_weights": True}, LacksKeywords(keywords=("average_attn_weights",), of="forward")),
        ({"need_weights": True, "average_attn_weights": True}, None),
        ({"mask": "causal"}, None),
    ],
)
def test_an_argument_is_needed_only_where_its_value_is_not_the_default(
    changes: dict[str, Any], reason: LacksKeywords | None
) -> None:
    """By default is_causal is False and average_attn_weights is True: a forward without both can compute such cases."""

    class Older(nn.MultiheadAttention):
        def forward(self, query: Any, key: Any, value: Any, key_padding_mask: Any, need_weights: Any, attn_mask: Any):  # type: ignore[no-untyped-def,override]
            """Compute nothing; this forward lacks ``average_attn_weights`` and ``is_causal``."""

    assert adopt(Older, "x").unsupported(make_case(**changes)) == reason


@pytest.mark.parametrize(
    ("thing", "kind"),
    [(3, "int"), ("sdpa", "str"), (nn.Linear(1, 1), "Linear"), (dict, "type"), (None, "NoneType")],
)
def test_an_object_that_is_not_an_implementation_is_an_error_of_one_line(thing: Any, kind: str) -> None:
    """The message names the type of the object and the types that are accepted."""
    with pytest.raises(PluginError) as raised:
        adopt(thing, "mine.py:thing")
    assert str(raised.value) == (
        f"'mine.py:thing' is {kind}; an implementation is an nn.Module class with the reference's constructor, "
        "a function of (q, k, v), or an attnbench.Implementation"
    )


def test_names_lead_to_implementations() -> None:
    """``load_implementation`` accepts a registered name, or a module and an attribute, and adopts what they name."""
    assert load_implementation("per_head").name == "per_head"
    assert load_implementation("torch.nn:MultiheadAttention").name == "torch.nn:MultiheadAttention"
    with pytest.raises(PluginError, match=r"'math:pi' is float"):
        load_implementation("math:pi")


OPERATOR = """
import torch

@torch.library.custom_op("attnbench_tests::attend", mutates_args=())
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v

def kernel(q, k, v):
    return attend(q, k, v)
"""


def test_a_torch_operator_is_registered_by_one_implementation(tmp_path: Path) -> None:
    """A second implementation that registers the same torch operator is refused: both would run the second's code."""
    for number in (1, 2):
        (tmp_path / f"mine{number}.py").write_text(OPERATOR)
    load_implementation(f"{tmp_path}/mine1.py:kernel")
    load_implementation(f"{tmp_path}/mine1.py:kernel")
    with pytest.raises(PluginError) as raised:
        load_implementation(f"{tmp_path}/mine2.py:kernel")
    assert str(raised.value) == (
        f"'{tmp_path}/mine2.py:kernel' registers torch's operator 'attnbench_tests::attend', which another "
        "implementation in the same process already registered: time the two implementations in separate processes"
    )


class Counting(nn.MultiheadAttention):
    """The reference with a parameter that has no gradient: a counter of calls."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.calls = nn.Parameter(torch.zeros((), dtype=torch.long), requires_grad=False)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Count the call, and compute the reference."""
        with torch.no_grad():
            self.calls += 1
        return super().forward(*arguments, **named)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_class_may_have_a_parameter_of_whole_numbers(conformance: "Conformance", mode: str) -> None:
    """A module class with a counter passes every check that the reference passes, with and without gradients."""
    implementation, case = adopt(Counting, "counting"), make_case(mode)
    # Counting in place fails under a transform of torch.func.
    implementation.policies = Policies(transforms="refused")
    statuses = {check: conformance.finding(implementation, case, check) for check in conformance.applicable(case)}
    failed = {check: finding.facts for check, finding in statuses.items() if finding.status == "failed"}
    reference = load_implementation("torch_mha")
    assert all(conformance.finding(reference, case, check).status == "failed" for check in failed), failed
    assert sum(finding.status == "passed" for finding in statuses.values()) > 20


def test_a_subclass_refuses_what_no_argument_stands_for(
    conformance: "Conformance", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example's subclass refuses unbatched input, and computes and refuses everything else as its base class."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "plugin_example")
    batched = load_implementation("batched_attention:BatchedAttention")
    refused, computed = (make_case(mask="pad", batch=batch, need_weights=True) for batch in (None, 2))
    statuses = {check: conformance.finding(batched, refused, check).status for check in conformance.applicable(refused)}
    # A module can be constructed, though not called.
    assert {check for check, status in statuses.items() if status != "unsupported"} == {"constructed_parameters"}
    statuses = {
        check: conformance.finding(batched, computed, check).status for check in conformance.applicable(computed)
    }
    # The first is undeclared; the second compares a batch with a call without one.
    assert {check for check, status in statuses.items() if status != "passed"} == {
        "second_derivatives", "a_batch_of_one_is_unbatched",
    }  # fmt: skip
    assert batched.unsupported(make_case(add_zero_attn=True)) == LacksKeywords(
        keywords=("add_zero_attn",), of="constructor"
    )
