"""Tests of the mutants made from bugs in public issues: each is wrong under its conditions and right elsewhere."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.mutants.multihead.formula import Formula
from attnbench.mutants.multihead.historical import mutant

# Sizes and settings of a call; a condition changes some of them.
PLAIN: dict[str, Any] = {
    "batch": 2, "queries": 5, "keys": 7, "values": None, "heads": 3, "width": 8, "dtype": torch.float32, "size": 1.0,
    "dropout": 0.0, "train": False, "grad": True, "weights": False, "compiled": False, "masks": {},
}  # fmt: skip


def padding(*rows: str) -> dict[str, Tensor]:
    """Make a key_padding_mask from one text per sequence, with ``x`` for a hidden key."""
    return {"key_padding_mask": torch.tensor([[letter == "x" for letter in row] for row in rows])}


def causal(length: int, keys: int) -> dict[str, Any]:
    """Make a causal attn_mask with its hint."""
    return {"attn_mask": torch.ones(length, keys, dtype=torch.bool).triu(1), "is_causal": True}


def band(length: int) -> dict[str, Tensor]:
    """Make an attn_mask of shape (length, length) that shows each query itself and the nine keys before it."""
    ones = torch.ones(length, length, dtype=torch.bool)
    return {"attn_mask": ones.triu(1) | ones.tril(-10)}


def hide(*shape: int, where: tuple[Any, ...]) -> dict[str, Tensor]:
    """Make an attn_mask that hides the keys at an index."""
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[where] = True
    return {"attn_mask": mask}


RIGHT_SIDE = padding("....xxx", ".......")
SOME = hide(5, 7, where=(slice(None), slice(4, None)))
ROW = hide(5, 7, where=(2,))
ROW_OF_HEAD = hide(6, 5, 7, where=(1, 2))
TINY = {"queries": 1, "keys": 2, "heads": 1, "width": 1}
LONG = {"batch": 1, "heads": 1, "width": 1, "grad": False}
HALF = {"dtype": torch.float16}
DROPPING = {"dropout": 0.25, "train": True}
# For each mutant, the changes of PLAIN under which it is wrong, and those under which it is right, or None.
CONDITIONS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "padding_counted": ({"masks": padding("xx.....", ".......")}, {"masks": RIGHT_SIDE}),
    "padding_of_tail_only": ({"masks": padding("...x...", ".......")}, {"masks": RIGHT_SIDE}),
    "padding_of_one_sequence_ignored": ({"batch": 1, "masks": padding("....xxx")}, {"masks": RIGHT_SIDE}),
    "padding_ignored_in_decoding": ({"queries": 1, "masks": RIGHT_SIDE}, {"masks": RIGHT_SIDE}),
    "queries_unpadded_by_keys": ({"masks": RIGHT_SIDE}, {"queries": 7, "masks": RIGHT_SIDE}),
    "padding_hides_queries": ({"queries": 7, "masks": RIGHT_SIDE}, {"masks": RIGHT_SIDE}),
    "mask_batch_read_as_heads": (
        {"batch": 3, "masks": padding("....xxx", ".......", ".....xx")},
        {"masks": RIGHT_SIDE},
    ),
    "causal_in_first_sequence": ({"masks": causal(5, 7)}, {"batch": 1, "masks": causal(5, 7)}),
    "hidden_twice": ({"masks": hide(5, 7, where=(2, slice(6))) | padding("......x", ".......")}, {"masks": SOME}),
    "half_fill_overflows": ({"masks": ROW} | HALF, {"masks": ROW}),
    "empty_rows_nan_with_weights": ({"masks": ROW_OF_HEAD, "weights": True}, {"masks": ROW_OF_HEAD}),
    "mask_after_softmax": ({"masks": SOME}, {}),
    "mask_multiplied": ({"masks": SOME}, {}),
    "mask_scaled_in_decoding": (
        {"queries": 1, "masks": {"attn_mask": torch.ones(1, 7).tril()}},
        {"masks": {"attn_mask": torch.ones(5, 7).tril()}},
    ),
    "float_mask_lost_when_compiled": (
        {"masks": {"attn_mask": torch.ones(5, 7).tril()}, "compiled": True, "grad": False},
        {"masks": {"attn_mask": torch.ones(5, 7).tril()}},
    ),
    "features_beyond64_ignored": ({"width": 128}, {"width": 64}),
    "tail_read_beyond_keys": ({"width": 64}, {"width": 64, "keys": 32}),
    "query_strides_assumed": ({"width": 64}, {"width": 64, "queries": 9, "keys": 9}),
    "hidden_first_tile_nan": (
        {"queries": 600, "keys": 600, "masks": band(600)} | LONG,
        {"queries": 512, "keys": 512, "masks": band(512)} | LONG,
    ),
    "future_tile_nan": (
        {"queries": 4097, "keys": 4097, "masks": causal(4097, 4097)} | LONG,
        {"queries": 4096, "keys": 4096, "masks": causal(4096, 4096)} | LONG,
    ),
    "batch_beyond_grid_unwritten": ({"batch": 65536} | TINY, {"batch": 65535} | TINY),
    "batch_beyond_grid_no_gradient": ({"batch": 65536} | TINY, {"batch": 65535} | TINY),
    "query_gradient_tail_stale": ({"width": 72}, {"width": 64}),
    "wide_half_backward_wrong": ({"width": 256, "dtype": torch.bfloat16}, {"width": 256}),
    "keys_swapped_in_backward": ({"keys": 3}, {}),
    "delta_of_later_rows_missing": ({"queries": 65}, {"queries": 64}),
    "dropout_in_softmax_backward": (DROPPING, {"dropout": 0.25}),
    "dropout_of_sum": (DROPPING, {"dropout": 0.25}),
    "scale_twice": ({}, None),
    "scaled_after_product": ({"width": 64, "size": 200.0} | HALF, {"width": 64, "size": 200.0}),
    "input_weights_transposed": ({}, None),
    "keys_centred_in_place": ({"grad": False}, {}),
    "key_count_of_values": ({"values": 9}, {}),
}
MODULES: dict[str, Callable[[Any], nn.Module]] = {one.name: one.implementation.build for one in mutant}


def call(build: Callable[[Any], nn.Module], changes: dict[str, Any]) -> dict[str, Tensor]:
    """Call a module; return outputs, gradients of the tokens and the tokens after the call, or nothing if it refuses.

    Parameters, tokens and the cotangent are the same for every module; tokens have the standard deviation ``size``.
    """
    given = PLAIN | changes
    torch.manual_seed(1)
    width, batch = given["heads"] * given["width"], given["batch"]
    reference = nn.MultiheadAttention(width, given["heads"], dropout=given["dropout"], batch_first=True)
    for parameter in (reference.in_proj_bias, reference.out_proj.bias):
        nn.init.normal_(parameter)
    module: Any = build(reference.to(given["dtype"]).train(given["train"]))
    if given["compiled"]:
        module = torch.compile(module, backend="aot_eager")
    lengths = {"query": given["queries"], "key": given["keys"], "value": given["values"] or given["keys"]}
    tokens = {
        name: (torch.randn(batch, length, width) * given["size"]).to(given["dtype"]).requires_grad_(given["grad"])
        for name, length in lengths.items()
    }
    with torch.set_grad_enabled(given["grad"]):
        try:
            output, weights = module(
                *tokens.values(), need_weights=given["weights"], average_attn_weights=False, **given["masks"]
            )
        except ValueError:
            return {}
        found = {"output": output.detach(), **{f"{name} after": x.detach().clone() for name, x in tokens.items()}}
        if weights is not None:
            found["weights"] = weights.detach()
        if given["grad"]:
            gradients = torch.autograd.grad(output, list(tokens.values()), torch.randn_like(output), allow_unused=True)
            for (name, x), gradient in zip(tokens.items(), gradients, strict=True):
                found[f"gradient of {name}"] = torch.zeros_like(x) if gradient is None else gradient
    return found


def agree(right: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two calls gave the same, up to rounding; NaN agrees with NaN."""
    return right.keys() == other.keys() and all(
        torch.allclose(right[name], other[name], rtol=1e-5, atol=1e-6, equal_nan=True) for name in right
    )


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_historical_bug_shows_under_its_conditions_only(name: str) -> None:
    """The module differs from the correct formula where its issue says so, and nowhere else that is tried."""
    wrong, right = CONDITIONS[name]
    expected = call(Formula, wrong)
    assert not agree(expected, call(MODULES[name], wrong))
    assert all(bool(x.isfinite().all()) for x in expected.values())
    if right is not None:
        assert agree(call(Formula, right), call(MODULES[name], right))


def test_every_historical_mutant_names_its_source() -> None:
    """The text ``why`` of every mutant ends with a repository and a number; there are at least 15 mutants."""
    texts = [one.why for one in mutant]
    assert [text for text in texts if "#" not in text.rpartition("(")[2]] == []
    assert len(texts) >= 15
