"""Tests of the trial of conventions: what is right is found, and what is wrong is not called a convention."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

import brought_attention as brought
from attnbench.interface import Implementation
from attnbench.interface.conventions import Convention, ModuleConvention
from attnbench.kernel import from_kernel
from attnbench.plugins.adapters import adopt
from attnbench.processes.convention_requests import AsItIs, FunctionProposal, ModuleProposal, NoConvention, Proposal
from attnbench.workers.trial import find_convention


def find(thing: Any) -> Proposal:
    """Try the conventions of a function or a class."""
    return find_convention(thing, adopt(thing, "brought"))


@pytest.mark.parametrize(
    ("function", "convention"),
    [
        (brought.flash_style, Convention(layout="bshd", names={"is_causal": "causal", "scale": "softmax_scale"})),
        (brought.packed_style, Convention(layout="bs3hd", names={"is_causal": "causal"})),
        (brought.loop_style, Convention(layout="folded")),
        (brought.biased_style, Convention(names={"mask": "attn_bias"}, masks="additive")),
        (brought.keeping_style, Convention(order=("v", "k", "q"), names={"mask": "keep_mask"}, masks="keep")),
        (brought.length_first_style, Convention(layout="sbhd")),
        (brought.hiding_style, Convention(masks="hide")),
        (brought.causal_style, Convention(causal_only=True)),
    ],
)
def test_the_convention_of_a_function_is_found(function: Callable[..., Any], convention: Convention) -> None:
    """Layout, order, names of keywords, kind of masks and causality follow from calls and from the signature."""
    found = find(function)
    assert isinstance(found, FunctionProposal)
    assert replace(found.convention, names=dict(found.convention.names)) == convention


def test_what_a_hidden_row_is_becomes_a_policy() -> None:
    """NaN and the mean of all values are told apart from zero."""
    rows = {one: find(one).hidden_rows for one in (brought.biased_style, brought.keeping_style, brought.hiding_style)}  # type: ignore[union-attr]
    assert [*rows.values()] == ["nan", "mean", "zero"]


@pytest.mark.parametrize(
    ("module_class", "arguments", "convention"),
    [
        (
            brought.Block,
            {"n_head": "num_heads", "n_embd": "embed_dim", "dropout": "0.0", "bias": "bias"},
            ModuleConvention(projections={"qkv": "c_attn", "out": "c_proj"}, tokens=("query",), causal_only=True),
        ),
        (
            brought.Decoder,
            {"d_model": "embed_dim", "num_attn_heads": "num_heads"},
            ModuleConvention(
                projections={"qkv": "Wqkv", "out": "out"}, tokens=("query",), causal_only=True, masks="hide",
                names={"key_padding_mask": "padding_mask"},
            ),
        ),
        (
            brought.Learned,
            {"d_model": "embed_dim", "n_heads": "num_heads", "p": "dropout"},
            ModuleConvention(
                projections={"q": "W_q", "k": "W_k", "v": "W_v", "out": "W_o"}, tokens=("value", "key", "query"),
                names={"mask": "mask"}, masks="keep", weights="heads",
            ),
        ),
        (
            brought.ImageStyle,
            {"dim": "embed_dim", "num_heads": "num_heads", "qkv_bias": "bias", "attn_drop": "dropout"},
            ModuleConvention(
                projections={"qkv": "qkv", "out": "proj"}, tokens=("query",), names={"mask": "attn_mask"},
                masks="additive",
            ),
        ),
        (
            brought.Named,
            {"hidden_size": "embed_dim", "num_attention_heads": "num_heads"},
            ModuleConvention(
                projections={"q": "query", "k": "key", "v": "value", "out": "dense"}, tokens=("query",),
                names={"key_padding_mask": "key_padding_mask"}, masks="hide", batch_first=False, transposed=True,
                biased=False,
            ),
        ),
    ],
)  # fmt: skip
def test_the_convention_of_a_module_is_found(
    module_class: type[nn.Module], arguments: dict[str, str], convention: ModuleConvention
) -> None:
    """Constructor, layers, tokens, masks, weights, biases and dropout follow from names and from calls."""
    found = find(module_class)
    assert isinstance(found, ModuleProposal), found
    config = found.construction.config
    assert (config.arguments if config else found.construction.arguments) == arguments
    made = replace(found.convention, names=dict(found.convention.names), projections=dict(found.convention.projections))
    assert made == convention


@pytest.mark.parametrize("order", brought.FUSED_ORDERS)
def test_every_order_of_a_fused_layer_is_found(order: str) -> None:
    """Queries, keys and values in any order, of all heads together or head by head."""
    found = find(brought.make_fused(order))
    assert isinstance(found, ModuleProposal)
    assert found.convention.projections == {order: "joined", "out": "last"}


def test_what_is_right_as_it_is_needs_no_convention() -> None:
    """A plain function, the reference itself, and an implementation that has declared how it is called."""

    def plain(q: Any, k: Any, v: Any) -> Any:
        return brought.hiding_style(q, k, v)

    assert find(plain) == AsItIs()
    assert find(nn.MultiheadAttention) == AsItIs()
    assert find(from_kernel(brought.loop_style)) == AsItIs()
    assert find(Declared) == AsItIs()


def test_a_mistake_is_no_convention() -> None:
    """Names are believed: exchanged layers, and exchanged arguments of known names, are left to the suite."""

    def swapped(q: Any, k: Any, v: Any) -> Any:
        return brought.hiding_style(q, v, k)

    for mistaken in (swapped, brought.Exchanged):
        found = find(mistaken)
        assert isinstance(found, NoConvention)
        assert found.stage == "result"


class Declared(Implementation):
    """An implementation that is named by its class."""

    name = "declared"


class Odd(nn.Module):
    """A class that cannot be understood."""

    def __init__(self, spam: int, eggs: int) -> None:
        super().__init__()
        self.spam, self.eggs = spam, eggs


class Normalised(brought.ImageStyle):
    """A module with a layer that is no projection."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads, qkv_bias=True)
        self.norm = nn.LayerNorm(dim)


class Grid(brought.ImageStyle):
    """A module that takes images."""

    def forward(self, x: Any) -> Any:
        """(batch, height, width, channels)."""
        batch, height, width, _ = x.shape
        return super().forward(x.flatten(1, 2)).unflatten(1, (height, width)) if batch else x


@pytest.mark.parametrize(
    ("thing", "stage", "word"),
    [
        (Odd, "construct", "spam"),
        (Normalised, "layers", "module.norm"),
        (Grid, "call", "not enough values to unpack"),
        (lambda a, b, c, *, flavour: a, "call", "flavour"),
    ],
)
def test_what_is_not_understood_says_how_far_it_came(thing: Any, stage: str, word: str) -> None:
    """The stage, and the last exception or what the constructor takes."""
    found = find(thing)
    assert isinstance(found, NoConvention)
    assert found.stage == stage
    assert word in found.error + " ".join(found.constructor)
