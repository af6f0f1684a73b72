"""Masks of a case, in the reference's polarity: true hides, minus infinity hides."""

import math

import torch
from torch import Tensor

from attnbench.masks import causal, from_lengths
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.oracle.inputs import Draw

__all__ = ["HIDDEN_SHARE", "LOW", "LOWEST", "drawn_masks", "union_row"]

# Share of keys that a drawn mask hides from a row. Key 0 stays visible, so that only the ``empty`` and ``union`` masks
# have rows without any key.
HIDDEN_SHARE = 0.4
# Added where a ``lowest`` mask hides: each is finite in every dtype (float16 ends at 65504), the sum of two is not.
LOW, LOWEST = -1e4, -6e4


def drawn_masks(problem: MultiheadProblem, draw: Draw) -> dict[str, Tensor]:
    """attn_mask and key_padding_mask, where the problem has them."""
    masks: dict[str, Tensor] = {}
    if problem.attention_mask:
        masks["attn_mask"] = _attention_mask(problem, draw)
    if problem.padding_mask:
        mask = _padding_mask(problem, draw)
        masks["key_padding_mask"] = mask[0] if problem.batch is None else mask
    return masks


def union_row(problem: MultiheadProblem) -> int:
    """The row that a ``union`` mask leaves nothing but the last key, which padding hides in all but the first."""
    return problem.queries // 2


def _attention_mask(problem: MultiheadProblem, draw: Draw) -> Tensor:
    """Mask of shape (queries, keys) or (batch·heads, queries, keys)."""
    kind, queries, keys = str(problem.attention_mask), problem.queries, problem.keys
    if kind == "causal":
        return causal(queries, keys)
    shared = kind.endswith("2d")
    shape = (queries, keys) if shared else (problem.sequences * problem.num_heads, queries, keys)
    if problem.regime in ("uniform", "selection"):
        return _all_but_a_power_of_two(draw, shape, largest=problem.regime == "uniform")
    hide = draw.uniform("attn_mask.hidden", *shape) < HIDDEN_SHARE
    hide[..., :1] = False
    if kind == "lowest2d":
        return _lowest(draw, hide)
    if "empty" in kind and hide.numel():
        # The middle row (2d), or that of one head of the last batch element (3d).
        hide[(queries // 2,) if shared else (-1, queries // 2)] = True
    if kind == "union2d" and hide.numel():
        hide[union_row(problem)] = True
        hide[union_row(problem), -1] = False
    if kind.startswith("float"):
        return draw.normal("attn_mask.values", *shape).masked_fill(hide, -math.inf)
    return hide


def _all_but_a_power_of_two(draw: Draw, shape: tuple[int, ...], *, largest: bool) -> Tensor:
    """Mask that leaves each row 1 key, or the largest power of two below the number of keys, chosen at random."""
    keys = shape[-1]
    visible = 2 ** int(math.log2(max(keys - 1, 1))) if largest else 1
    order = draw.uniform("attn_mask.hidden", *shape).argsort(dim=-1).argsort(dim=-1)
    return order >= visible


def _lowest(draw: Draw, hide: Tensor) -> Tensor:
    """Large negative numbers where ``hide`` says, and in the whole middle row."""
    which = draw.uniform("attn_mask.values", *hide.shape) < 0.5
    mask = torch.where(which, LOW, LOWEST).double() * hide
    if hide.numel():
        mask[hide.shape[0] // 2] = LOW
    return mask


def _padding_mask(problem: MultiheadProblem, draw: Draw) -> Tensor:
    """Mask of shape (batch, keys): the first sequence is full, each other one ends earlier."""
    batch, keys = problem.sequences, problem.keys
    lengths = (1 + (draw.uniform("lengths", batch) * (keys - 1)).long()).clamp(max=keys)
    if problem.regime == "uniform":
        lengths = 2 ** lengths.clamp(min=1).double().log2().long()
    if batch:
        lengths[0] = keys if batch > 1 else max(min(1, keys), keys - 2)
    if batch and problem.regime == "uniform":
        lengths[0] = 2 ** int(math.log2(max(keys - 1, 1)))
    if batch and problem.padding_mask == "padempty":
        lengths[-1] = 0
    hide = from_lengths(lengths, keys)
    if problem.padding_mask == "padfloat":
        return draw.normal("key_padding_mask.values", batch, keys).masked_fill(hide, -math.inf)
    if problem.padding_mask == "padlowest":
        return hide.double() * LOWEST
    return hide
