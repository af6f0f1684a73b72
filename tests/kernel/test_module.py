"""Tests of modules of other kinds, and functions of other conventions, as implementations of multi-head attention."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brought_attention as brought
from attnbench.cases import Case
from attnbench.interface import Implementation, Policies, Refusal
from attnbench.kernel import Convention, ModuleConvention, core_from_kernel, from_kernel, from_module
from attnbench.operators.attention_core.problem import AttentionCoreProblem
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.refusals import LacksKeywords, LacksWeights, Restriction, TakesOnly
from conftest import Conformance

LAYERS = {"q": "W_q", "k": "W_k", "v": "W_v", "out": "W_o"}


def make_case(*, mode: str = "train", **fields: Any) -> Case:
    """Make a case of self-attention in float64, unless the fields say otherwise."""
    sizes = {"batch": 2, "queries": 5, "keys": 5, "embed_dim": 24, "num_heads": 3, "bias": True, "batch_first": True}
    problem = MultiheadProblem(**{**sizes, "self_attention": True, **fields})
    return Case(operator="multihead", problem=problem, mode=mode, dtype="float64")  # type: ignore[arg-type]


def wrap(module_class: Callable[..., nn.Module], **convention: Any) -> Implementation:
    """Wrap a class that takes width and heads."""

    def make(embed_dim: int, num_heads: int) -> nn.Module:
        return module_class(embed_dim, num_heads)

    return from_module(make, ModuleConvention(**convention))


LEARNED = wrap(
    partial(brought.Learned, p=0.0), projections=LAYERS, tokens=("value", "key", "query"), names={"mask": "mask"},
    masks="keep", weights="heads",
)  # fmt: skip
SELF = {"tokens": ("query",)}


@pytest.mark.parametrize("order", brought.FUSED_ORDERS)
def test_fused_layers_in_any_order_give_output_and_gradients(order: str, conformance: Conformance) -> None:
    """The reference's parameters are loaded into the layer, and its gradients come back out of it."""
    own = wrap(brought.make_fused(order), projections={order: "joined", "out": "last"}, **SELF)
    for check in ("forward_parity", "parameter_gradients"):
        assert conformance.finding(own, make_case(), check).status == "passed"
    wrong = {"qkv": "kqv", "kqv": "qkv"}.get(order, "qkv")
    assert conformance.finding(
        wrap(brought.make_fused(order), projections={wrong: "joined", "out": "last"}, **SELF), make_case(),
        "forward_parity",
    ).status == "failed"  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"self_attention": False, "keys": 7},
        {"mask": "bool3d"},
        {"mask": "causal+pad", "is_causal": True, "batch_first": False},
        {"need_weights": True, "average_attn_weights": True},
        {"batch": None, "queries": 4, "keys": 4},
    ],
)
def test_a_wrapped_module_has_the_forward_of_the_reference(fields: dict[str, Any], conformance: Conformance) -> None:
    """Cross-attention, masks in one tensor, weights, and tokens length-first or without a batch."""
    case = make_case(**fields)
    assert LEARNED.unsupported(case) is None
    for check in ("forward_parity", "input_gradients", "parameter_gradients"):
        assert conformance.finding(LEARNED, case, check).status == "passed"


def test_padding_of_a_causal_module_is_checked(conformance: Conformance) -> None:
    """The causal mask is the module's own, and key_padding_mask has a keyword."""
    own = from_module(
        lambda embed_dim, num_heads: brought.Decoder(brought.DecoderConfig(embed_dim, num_heads)),
        ModuleConvention(
            projections={"qkv": "Wqkv", "out": "out"}, tokens=("query",), causal_only=True, masks="hide",
            names={"key_padding_mask": "padding_mask"},
        ),
        name="decoder",
    )  # fmt: skip
    case = make_case(mask="causal+pad", is_causal=True)
    assert own.unsupported(case) is None
    for check in ("forward_parity", "input_gradients", "padding_cannot_leak"):
        assert conformance.finding(own, case, check).status == "passed"


def test_a_layer_that_the_module_lacks_is_applied_outside(conformance: Conformance) -> None:
    """Without a key for the output projection, that of the reference is applied to what the module returns."""

    class Headed(brought.Learned):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__(width, heads, p=0.0)
            self.W_o = nn.Identity()  # type: ignore[assignment]

    projections = {key: layer for key, layer in LAYERS.items() if key != "out"}
    own = wrap(Headed, projections=projections, tokens=("value", "key", "query"), names={"mask": "mask"}, masks="keep")
    for check in ("forward_parity", "parameter_gradients"):
        assert conformance.finding(own, make_case(), check).status == "passed"


def test_a_bias_that_the_reference_lacks_is_zero(conformance: Conformance) -> None:
    """A module some of whose layers have biases computes the cases without one."""
    own = from_module(
        lambda embed_dim, num_heads, *, bias: brought.ImageStyle(embed_dim, num_heads, qkv_bias=bias),
        ModuleConvention(projections={"qkv": "qkv", "out": "proj"}, **SELF),
        name="image",
    )
    for bias in (True, False):
        for check in ("forward_parity", "parameter_gradients"):
            assert conformance.finding(own, make_case(bias=bias), check).status == "passed"


@pytest.mark.parametrize(
    ("convention", "fields", "what"),
    [
        (SELF, {"self_attention": False}, "self_attention"),
        ({"tokens": ("query", "key")}, {"self_attention": False}, "one_context"),
        (SELF | {"causal_only": True}, {}, "causal"),
        (SELF | {"causal_only": True}, {"mask": "causal+pad", "is_causal": True}, "causal"),
        ({"masks": "keep", "names": {"mask": "mask"}}, {"mask": "float2d"}, "boolean_masks"),
        ({"mask_dimensions": 3, "names": {"mask": "mask"}}, {"mask": "bool3d"}, "shared_masks"),
        ({"mask_dimensions": 2, "names": {"mask": "mask"}}, {"mask": "pad"}, "one_mask"),
        ({"biased": False}, {}, "no_biases"),
        ({}, {"bias": False}, "biases"),
        ({}, {"self_attention": False, "kdim": 12}, "one_width"),
        ({}, {"add_zero_attn": True}, "given_keys"),
    ],
)
def test_refusals_follow_from_the_convention(
    convention: dict[str, Any], fields: dict[str, Any], what: Restriction
) -> None:
    """A case that the convention cannot express is refused, and its call is, too."""
    own, case = wrap(brought.Learned, projections=LAYERS, **convention), make_case(**fields)
    assert own.unsupported(case) == TakesOnly(what=what)
    with pytest.raises(Refusal):
        own.prepare(nn.Identity(), case, None)  # type: ignore[arg-type]


def test_keywords_that_are_not_named_are_refused() -> None:
    """Masks, weights and dropout."""
    own = wrap(brought.Learned, projections=LAYERS)
    assert own.unsupported(make_case(mask="bool2d")) == LacksKeywords(keywords=("attn_mask",), of="forward")
    assert own.unsupported(make_case(mask="pad")) == LacksKeywords(keywords=("key_padding_mask",), of="forward")
    assert own.unsupported(make_case(need_weights=True)) == LacksWeights()
    assert own.unsupported(make_case(dropout=0.5)) == LacksKeywords(keywords=("dropout",), of="constructor")
    assert own.unsupported(make_case(dropout=0.5, mode="eval")) is None


class Bare(nn.Module):
    """Layers of which one has no bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)


def test_layers_that_do_not_fit_are_named() -> None:
    """A layer without a key, and a key whose layer has another shape."""
    reference = nn.MultiheadAttention(24, 3)
    with pytest.raises(TypeError, match=r"lack module\.W_o\.bias, module\.W_o\.weight"):
        wrap(brought.Learned, projections={key: one for key, one in LAYERS.items() if key != "out"}).build(reference)
    with pytest.raises(TypeError, match=r"module\.joined\.weight must have shape \(24, 24\), got \(72, 24\)"):
        wrap(brought.make_fused("qkv"), projections={"q": "joined", "kv": "last"}).build(reference)
    with pytest.raises(ValueError, match="projections must name each of q, k and v once"):
        ModuleConvention(projections={"q": "q", "k": "k"})
    with pytest.raises(ValueError, match="projections: a key is letters"):
        ModuleConvention(projections={"query": "q"})
    with pytest.raises(ValueError, match="tokens must be"):
        ModuleConvention(projections=LAYERS, tokens=("key",))
    with pytest.raises(TypeError, match=r"the module has no module\.dense\.bias: .*declare biased=False"):
        wrap(Bare, projections={"qkv": "qkv", "out": "dense"}).build(reference)
    with pytest.raises(ValueError, match="layout must be one of bhsd, bshd, sbhd, folded, bs3hd; got 'hbsd'"):
        Convention(layout="hbsd")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="order must have each of 'q', 'k' and 'v' once"):
        Convention(order=("q", "k", "k"))


FUNCTIONS = {
    brought.flash_style: Convention(layout="bshd", names={"is_causal": "causal", "scale": "softmax_scale"}),
    brought.packed_style: Convention(layout="bs3hd", names={"is_causal": "causal"}, contiguous=True),
    brought.loop_style: Convention(layout="folded"),
    brought.length_first_style: Convention(layout="sbhd"),
    brought.biased_style: Convention(names={"mask": "attn_bias"}, masks="additive"),
    brought.keeping_style: Convention(order=("v", "k", "q"), names={"mask": "keep_mask"}, masks="keep"),
    brought.hiding_style: Convention(masks="hide"),
    brought.causal_style: Convention(causal_only=True),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("mask", ["none", "causal", "bool3d", "pad"])
def test_a_function_is_called_by_its_convention(
    function: Callable[..., Any], mask: str, conformance: Conformance
) -> None:
    """Of every case, the result is right, or the case is refused by declaration and call."""
    own = from_kernel(function, convention=FUNCTIONS[function])
    case = make_case(mask=mask, is_causal=mask == "causal")
    takes_mask = "mask" in (own.convention.names or {"mask": ""}) and function not in (
        brought.loop_style, brought.causal_style, brought.length_first_style,
    )  # fmt: skip
    flagged = function in (brought.flash_style, brought.packed_style, brought.causal_style)
    supported = flagged if mask == "causal" and flagged else takes_mask or mask == "none"
    supported &= function is not brought.causal_style or mask == "causal"
    assert (own.unsupported(case) is None) == supported
    finding = conformance.finding(own, case, "forward_parity")
    assert finding.status == ("passed" if supported else "unsupported")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_convention_holds_for_the_core(function: Callable[..., Any], conformance: Conformance) -> None:
    """``core_from_kernel`` takes it over."""
    own = core_from_kernel(from_kernel(function, convention=FUNCTIONS[function]))
    problem = AttentionCoreProblem(sequences=2, num_heads=3, queries=5, keys=5, head_dim=8, mask="causal_tl")
    case = Case(operator="attention_core", problem=problem, mode="train", dtype="float64")
    supported = own.unsupported(case) is None
    assert supported == (function not in (brought.loop_style, brought.length_first_style))
    finding = conformance.finding(own, case, "forward_parity")
    assert finding.status == ("passed" if supported else "unsupported")


def test_a_packed_function_refuses_other_shapes() -> None:
    """Queries, keys and values are one tensor."""
    own = from_kernel(brought.packed_style, convention=FUNCTIONS[brought.packed_style])
    assert own.unsupported(make_case(self_attention=False, keys=7)) == TakesOnly(what="equal_shapes")
    q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 3, 4)
    with pytest.raises(Refusal):
        own.call_function(q, k, k, needs={}, offered={})


def test_float_masks_are_refused_where_only_booleans_are_taken() -> None:
    """A mask that is added has no boolean form."""
    own = from_kernel(brought.hiding_style, convention=Convention(masks="hide"))
    assert own.unsupported(make_case(mask="float2d")) == TakesOnly(what="boolean_masks")
    q: Tensor = torch.zeros(1, 1, 2, 4)
    with pytest.raises(Refusal):
        own.call_function(q, q, q, needs={}, offered={"mask": torch.zeros(2, 2)})


def test_additive_mask_is_the_convention_of_that_name() -> None:
    """Both declare the same."""
    own = from_kernel(brought.biased_style, additive_mask=True, policies=Policies(hidden_rows="nan"))
    assert own.convention == Convention(masks="additive")
