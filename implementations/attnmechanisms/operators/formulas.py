"""The formulas of the elementary mechanisms, independent of every implementation.

A formula takes parameters and arguments by name, and a function ``rounded``, which it applies to each intermediate
result. The formula returns output and attention weights.

    raw        softmax(X Xᵀ) X
    scaled     softmax(X W_q (X W_k)ᵀ / √d) X W_v
    additive   softmax(tanh(X W_kᵀ + q W_qᵀ) w)ᵀ X
    dot        softmax(X q)ᵀ X
    single     softmax(X W_qᵀ (X W_kᵀ)ᵀ / √E + M) X W_vᵀ W_outᵀ
    block      LayerNorm(X + MultiHead(X))

X has one token of a sequence per row, and q is a learned query. d is the width of a key, and E is the width of a token.
M is −∞ where a mask hides a key, and 0 elsewhere. The other formulas are written without their masks.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473,
section A.1.2; Ba et al. 2016, https://arxiv.org/abs/1607.06450.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.operators.formula import Rounded
from attnbench.operators.rounding import softmax

__all__ = ["EPSILON", "FORMULAS", "PATHS", "combine_masks"]

# Number that LayerNorm adds to the variance. The value is the default of torch.nn.LayerNorm.
EPSILON = 1e-5

Given = Mapping[str, Any]
Outputs = tuple[Tensor, Tensor]


def combine_masks(given: Given) -> Tensor | None:
    """Return a mask that is true where either mask hides a key, or None if there is no mask.

    Shape: broadcastable to (batch, queries, keys).
    """
    hidden: Tensor | None = None
    if "key_padding_mask" in given:
        hidden = given["key_padding_mask"][:, None, :]
    if "attn_mask" in given:
        hidden = given["attn_mask"] if hidden is None else hidden | given["attn_mask"]
    return hidden


def _attend(scores: Tensor, values: Tensor, hidden: Tensor | None, rounded: Rounded) -> Outputs:
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    weights = rounded(softmax(scores))
    return rounded(weights @ values, values.shape[-2]), weights


def _scaled_scores(q: Tensor, k: Tensor, rounded: Rounded) -> Tensor:
    return rounded(rounded(q / math.sqrt(q.shape[-1])) @ k.mT, q.shape[-1])


def _raw_self_attention(given: Given, rounded: Rounded) -> Outputs:
    tokens = given["tokens"]
    return _attend(rounded(tokens @ tokens.mT, tokens.shape[-1]), tokens, combine_masks(given), rounded)


def _scaled_self_attention(given: Given, rounded: Rounded) -> Outputs:
    tokens = given["tokens"]
    q, k, v = (rounded(tokens @ given[name], tokens.shape[-1]) for name in ("w_q", "w_k", "w_v"))
    return _attend(_scaled_scores(q, k, rounded), v, combine_masks(given), rounded)


def _pool(scores: Tensor, given: Given, rounded: Rounded) -> Outputs:
    """Compute a vector and attention weights for each sequence, from scores (batch, 1, length)."""
    output, weights = _attend(scores, given["tokens"], combine_masks(given), rounded)
    return output[:, 0], weights[:, 0]


def _additive_pooling(given: Given, rounded: Rounded) -> Outputs:
    tokens = given["tokens"]
    width = tokens.shape[-1]
    of_tokens = rounded(tokens @ given["w_k"].mT, width)
    of_query = rounded(given["query"] @ given["w_q"].mT, width)
    layer = rounded(rounded(of_tokens + of_query).tanh())
    return _pool(rounded((layer @ given["w"]).mT, width), given, rounded)


def _dot_product_pooling(given: Given, rounded: Rounded) -> Outputs:
    tokens = given["tokens"]
    return _pool(rounded((tokens @ given["query"]).mT, tokens.shape[-1]), given, rounded)


def _single_head(given: Given, rounded: Rounded) -> Outputs:
    tokens = given["tokens"]
    width = tokens.shape[-1]
    q, k, v = (rounded(tokens @ given[name].mT, width) for name in ("w_q", "w_k", "w_v"))
    attended, weights = _attend(_scaled_scores(q, k, rounded), v, combine_masks(given), rounded)
    return rounded(attended @ given["w_out"].mT, width), weights


def _add_attention(given: Given, rounded: Rounded) -> Outputs:
    """Compute tokens + MultiHead(tokens), and the attention weights averaged over heads."""
    tokens, heads = given["tokens"], given["num_heads"]
    width = tokens.shape[-1]
    projections = zip(given["in_proj_weight"].chunk(3), given["in_proj_bias"].chunk(3), strict=True)
    q, k, v = (
        torch.unflatten(rounded(tokens @ weight.mT + bias, width), -1, (heads, width // heads)).transpose(1, 2)
        for weight, bias in projections
    )  # (batch, heads, length, head_dim)
    hidden = combine_masks(given)
    if hidden is not None and hidden.dim() == 3:
        hidden = hidden[:, None]  # (batch, 1, queries, keys): the same for every head
    attended, weights = _attend(_scaled_scores(q, k, rounded), v, hidden, rounded)
    merged = rounded(attended.transpose(1, 2).flatten(2) @ given["out_proj_weight"].mT + given["out_proj_bias"], width)
    return rounded(tokens + merged), weights.mean(dim=1)


def _residual_block(given: Given, rounded: Rounded) -> Outputs:
    total, weights = _add_attention(given, rounded)
    centred = rounded(total - rounded(total.mean(dim=-1, keepdim=True)))
    variance = rounded(centred.square().mean(dim=-1, keepdim=True))
    normed = rounded(centred / (variance + EPSILON).sqrt())
    return rounded(normed * given["norm_weight"] + given["norm_bias"]), rounded(weights)


def _residual_block_with_torch_norm(given: Given, rounded: Rounded) -> Outputs:
    """Compute the residual block with torch's LayerNorm.

    On a CPU, torch's LayerNorm computes the gradients of its weight and bias by adding one term
    after another, in the dtype of the parameters. The rounding errors of these sums differ from those
    of ``_residual_block``.
    """
    total, weights = _add_attention(given, rounded)
    scale, shift = given["norm_weight"], given["norm_bias"]
    return rounded(torch.nn.functional.layer_norm(total, scale.shape, scale, shift, EPSILON)), rounded(weights)


FORMULAS: dict[str, Callable[[Given, Rounded], Outputs]] = {
    "raw_self_attention": _raw_self_attention,
    "scaled_self_attention": _scaled_self_attention,
    "additive_pooling": _additive_pooling,
    "dot_product_pooling": _dot_product_pooling,
    "single_head": _single_head,
    "residual_block": _residual_block,
}
# Second formulas of some operators. The key of a formula is the name of its operator. The steps of a second formula,
# and therefore its rounding errors, differ from those of the operator's formula in FORMULAS.
PATHS: dict[str, Callable[[Given, Rounded], Outputs]] = {"residual_block": _residual_block_with_torch_norm}
