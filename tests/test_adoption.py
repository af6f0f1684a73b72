"""Tests of what a user may name: a class, a function, or an implementation; and what is refused, and how."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Implementation
from attnbench.operators.multihead.suites import CROSS
from attnbench.plugins.adapters import ModuleImplementation, adopt, load_implementation
from attnbench.plugins.registry import PluginError, load_operator


def case(mode: Any = "eval", **changes: Any) -> Case:
    """Case in float64, batch first, with biases, without weights or masks."""
    return Case(operator="multihead", problem=CROSS, dtype="float64", mode=mode).with_problem(**changes)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention as a plain function."""
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


class Plain(nn.MultiheadAttention):
    """The reference under another name: takes whatever it takes."""


class Narrow(nn.Module):
    """Module that knows only part of the reference's constructor and forward."""

    def __init__(self, embed_dim: int, num_heads: int, *, batch_first: bool = False) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(embed_dim, num_heads, batch_first=batch_first)
        for name, parameter in self.inner.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self.out_proj = self.inner.out_proj
        self.handed: set[str] = set()

    def load_state_dict(self, state: Any, **_: Any) -> Any:
        """The reference's names alone."""
        return self.inner.load_state_dict(state)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        """No masks, no weights."""
        return self.inner(query, key, value, need_weights=False)[0], None


class Anything(nn.Module):
    """Module that says nothing by its signatures."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__()

    def forward(self, **named: Any) -> Any:
        """Whatever was handed over."""
        return named


class Wrapped(Narrow):
    """Hands on whatever it gets, and says nothing of it by its signatures."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Narrow's."""
        return super().forward(*arguments, **named)


class CallableKernel:
    """A kernel that is an object."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        """Attention, with the scale that it is given."""
        return torch.softmax(q @ k.mT * scale, dim=-1) @ v


class Declared(Implementation):
    """One of ours."""

    name = "declared"


# What is taken


def test_an_implementation_is_taken_as_it_is() -> None:
    """An instance stays that instance, and a class is instantiated."""
    instance = Declared()
    assert adopt(instance, "x") is instance
    assert type(adopt(Declared, "x")) is Declared


def test_a_function_becomes_a_kernel() -> None:
    """Projections, heads and layouts are put around it; it bears the name that the user gave."""
    made = adopt(attention, "mine.py:attention")
    assert made.name == "mine.py:attention"
    assert_is_the_reference(made)


def test_a_module_class_is_built_like_the_reference() -> None:
    """A class with the reference's constructor, forward and parameter names needs no declaration."""
    made = adopt(Plain, "mine.py:Plain")
    assert (made.name, type(made)) == ("mine.py:Plain", ModuleImplementation)
    assert made.unsupported(case(add_bias_kv=True, kdim=10, vdim=14, mask="float3d+pad", need_weights=True)) is None
    assert_is_the_reference(made)


def assert_is_the_reference(made: Implementation) -> None:
    """Fail unless a built and prepared implementation computes what the reference does."""
    one, operator = case(), load_operator("multihead")
    given = operator.inputs(one)
    reference = operator.reference(one, given)
    call = made.prepare(made.build(reference).eval(), one, given)
    expected = reference(**given.arguments())[0]
    torch.testing.assert_close(call(**given.arguments())[0], expected, rtol=1e-12, atol=1e-12)


def test_weights_are_loaded_without_rounding() -> None:
    """The class is made in torch's default precision; float64 weights never pass through it."""
    one, operator = case(add_bias_kv=True), load_operator("multihead")
    given = operator.inputs(one)
    module = adopt(Plain, "x").build(operator.reference(one, given))
    assert module.state_dict().keys() == given.parameters.keys()
    for name, tensor in module.state_dict().items():
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor, given.parameters[name])
        assert not torch.equal(tensor, given.parameters[name].float().double())


def test_a_module_is_handed_only_what_its_signatures_have() -> None:
    """Arguments that are left at their defaults are not passed to a constructor or a forward without them."""
    made = adopt(Narrow, "x")
    assert made.unsupported(case()) is None
    assert_is_the_reference(made)


def test_what_hands_on_its_arguments_takes_what_the_class_above_it_takes() -> None:
    """``**keywords`` of a subclass is no promise that goes beyond the class that it wraps."""
    made = adopt(Wrapped, "x")
    assert made.unsupported(case(kdim=10, vdim=14)) == "its constructor takes no kdim"
    assert made.unsupported(case(mask="pad")) == "its forward takes no key_padding_mask"
    assert made.unsupported(case()) is None
    assert_is_the_reference(made)


def test_an_object_that_can_be_called_becomes_a_kernel() -> None:
    """A kernel need not be a function; what its call takes is what it is handed."""
    made = adopt(CallableKernel(), "mine.py:KERNEL")
    assert made.unsupported(case(mask="pad")) == "the kernel takes no mask"
    assert_is_the_reference(made)


def test_arguments_bound_by_partial_stay_bound() -> None:
    """``functools.partial`` of a kernel or of a class is what it stands for, with those arguments that it binds."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, scale: float, need_weights: bool, slope: float) -> Any:
        assert (slope, need_weights) == (2.0, False)
        return torch.softmax(q @ k.mT * scale, dim=-1) @ v

    made = adopt(functools.partial(kernel, slope=2.0, need_weights=False), "mine.py:KERNEL")
    assert made.unsupported(case(need_weights=True)) == "the kernel takes no need_weights"
    assert_is_the_reference(made)

    class Sloped(Plain):
        def __init__(self, *arguments: Any, slope: float, **named: Any) -> None:
            super().__init__(*arguments, **named)
            assert slope == 2.0

    module = adopt(functools.partial(Sloped, slope=2.0, bias=True), "mine.py:SLOPED")
    assert module.unsupported(case(bias=False)) == "its constructor takes no bias"
    assert_is_the_reference(module)


@pytest.mark.parametrize(
    "changes",
    [
        {"dropout": 0.5}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 10, "vdim": 14},
        {"mask": "bool2d"}, {"mask": "pad"}, {"mask": "causal", "is_causal": True}, {"need_weights": True},
        {"need_weights": True, "average_attn_weights": True},
    ],
)  # fmt: skip
def test_an_absent_argument_is_refused_aloud(changes: dict[str, Any]) -> None:
    """What the signatures lack is handed over where a case needs it, so that the class refuses it by itself."""
    one, operator = case(**changes), load_operator("multihead")
    made, given = adopt(Narrow, "x"), operator.inputs(one)
    assert made.unsupported(one) is not None
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        made.prepare(made.build(operator.reference(one, given)), one, given)(**given.arguments())


def test_a_function_without_a_signature_is_told() -> None:
    """A builtin does not say which keywords it takes; the message says what to do."""
    with pytest.raises(PluginError) as raised:
        adopt(torch.nn.functional.scaled_dot_product_attention, "torch:sdpa")
    assert str(raised.value) == (
        "'torch:sdpa' has no signature to read its arguments from: wrap it in a function of (q, k, v) and the keywords "
        "that it needs"
    )


def test_a_module_that_takes_anything_is_handed_everything() -> None:
    """Keywords of any name are no refusal."""
    made = adopt(Anything, "x")
    assert made.unsupported(case(need_weights=True, mask="bool2d+pad", add_zero_attn=True, dropout=0.5)) is None
    given = load_operator("multihead").inputs(case(mask="pad"))
    handed = made.prepare(Anything(), case(), given)(**given.arguments())
    assert set(handed) == {
        "query", "key", "value", "key_padding_mask", "need_weights", "average_attn_weights", "is_causal",
    }  # fmt: skip


# What is refused


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dropout": 0.5}, "its constructor takes no dropout"),
        ({"bias": False}, "its constructor takes no bias"),
        ({"add_bias_kv": True}, "its constructor takes no add_bias_kv"),
        ({"add_zero_attn": True}, "its constructor takes no add_zero_attn"),
        ({"kdim": 10, "vdim": 14}, "its constructor takes no kdim"),
        ({"batch_first": False}, None),
        ({"mask": "bool2d"}, "its forward takes no attn_mask"),
        ({"mask": "pad"}, "its forward takes no key_padding_mask"),
        ({"mask": "causal", "is_causal": True}, "its forward takes no attn_mask"),
        ({"need_weights": True}, "its forward takes no need_weights"),
        ({}, None),
    ],
)
def test_a_case_that_needs_an_absent_argument_is_refused(changes: dict[str, Any], reason: str | None) -> None:
    """The refusal names what the signature lacks; nothing is left out silently."""
    assert adopt(Narrow, "x").unsupported(case(**changes)) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask": "causal", "is_causal": True}, "its forward takes no is_causal"),
        ({"need_weights": True}, "its forward takes no average_attn_weights"),
        ({"need_weights": True, "average_attn_weights": True}, None),
        ({"mask": "causal"}, None),
    ],
)
def test_an_argument_is_needed_only_where_its_default_is_not_meant(changes: dict[str, Any], reason: str | None) -> None:
    """The reference averages weights by default, and promises no causal mask."""

    class Older(nn.MultiheadAttention):
        def forward(self, query: Any, key: Any, value: Any, key_padding_mask: Any, need_weights: Any, attn_mask: Any):  # type: ignore[no-untyped-def,override]
            """Forward without the newer arguments."""

    assert adopt(Older, "x").unsupported(case(**changes)) == reason


@pytest.mark.parametrize(
    ("thing", "kind"),
    [(3, "int"), ("sdpa", "str"), (nn.Linear(1, 1), "Linear"), (dict, "type"), (None, "NoneType")],
)
def test_what_is_no_implementation_is_told_in_one_line(thing: Any, kind: str) -> None:
    """The message says what came and what it may be."""
    with pytest.raises(PluginError) as raised:
        adopt(thing, "mine.py:thing")
    assert str(raised.value) == (
        f"'mine.py:thing' is {kind}; an implementation is an nn.Module class with the reference's constructor, "
        "a function of (q, k, v), or an attnbench.Implementation"
    )


def test_names_lead_to_implementations() -> None:
    """A registered name, and a module and attribute, are loaded and adopted."""
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


def test_an_operator_of_torch_has_one_owner(tmp_path: Path) -> None:
    """Two versions that register the same operator would both run the later one's code; the later one is refused."""
    for number in (1, 2):
        (tmp_path / f"mine{number}.py").write_text(OPERATOR)
    load_implementation(f"{tmp_path}/mine1.py:kernel")
    load_implementation(f"{tmp_path}/mine1.py:kernel")
    with pytest.raises(PluginError) as raised:
        load_implementation(f"{tmp_path}/mine2.py:kernel")
    assert str(raised.value) == (
        f"'{tmp_path}/mine2.py:kernel' registers torch's operator 'attnbench_tests::attend', which another "
        "implementation in the same process registered before: they cannot be timed in one process"
    )
