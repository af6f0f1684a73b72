"""The formulas of the elementary mechanisms, written apart from every implementation.

Each takes parameters and arguments by name, and ``rounded``, which is called on what is stored after each step; it
gives output and weights.

    raw        softmax(X Xᵀ) X
    scaled     softmax(X W_q (X W_k)ᵀ / √d) X W_v
    additive   softmax(tanh(X W_kᵀ + q W_qᵀ) w)ᵀ X
    dot        softmax(X q)ᵀ X
    single     softmax(X W_qᵀ (X W_kᵀ)ᵀ / √E + M) X W_vᵀ W_outᵀ
    block      LayerNorm(X + MultiHead(X))

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

__all__ = ["EPSILON", "FORMULAS", "PATHS", "hidden"]

# Added to the variance; torch.nn.LayerNorm's own.
EPSILON = 1e-5

Given = Mapping[str, Any]
Outputs = tuple[Tensor, Tensor]


def hidden(given: Given) -> Tensor | None:
    """What masks hide, broadcastable to (batch, queries, keys)."""
    total: Tensor | None = None
    if "key_padding_mask" in given:
        total = given["key_padding_mask"][:, None, :]
    if "attn_mask" in given:
        total = given["attn_mask"] if total is None else total | given["attn_mask"]
    return total


def _attended(scores: Tensor, values: Tensor, hide: Tensor | None, rounded: Rounded) -> Outputs:
    if hide is not None:
        scores = scores.masked_fill(hide, -math.inf)
    weights = rounded(softmax(scores))
    return rounded(weights @ values, values.shape[-2]), weights


def _scaled_scores(q: Tensor, k: Tensor, rounded: Rounded) -> Tensor:
    return rounded(rounded(q / math.sqrt(q.shape[-1])) @ k.mT, q.shape[-1])


def _raw(given: Given, rounded: Rounded) -> Outputs:
    tokens = given["tokens"]
    return _attended(rounded(tokens @ tokens.mT, tokens.shape[-1]), tokens, hidden(given), rounded)


def _scaled(given: Given, rounded: Rounded) -> Outputs:
    tokens = given["tokens"]
    q, k, v = (rounded(tokens @ given[name], tokens.shape[-1]) for name in ("w_q", "w_k", "w_v"))
    return _attended(_scaled_scores(q, k, rounded), v, hidden(given), rounded)


def _pooled(scores: Tensor, given: Given, rounded: Rounded) -> Outputs:
    """One vector of each sequence, from scores (batch, 1, length)."""
    output, weights = _attended(scores, given["tokens"], hidden(given), rounded)
    return output[:, 0], weights[:, 0]


def _additive(given: Given, rounded: Rounded) -> Outputs:
    tokens = given["tokens"]
    width = tokens.shape[-1]
    of_tokens = rounded(tokens @ given["w_k"].mT, width)
    of_query = rounded(given["query"] @ given["w_q"].mT, width)
    layer = rounded(rounded(of_tokens + of_query).tanh())
    return _pooled(rounded((layer @ given["w"]).mT, width), given, rounded)


def _dot(given: Given, rounded: Rounded) -> Outputs:
    tokens = given["tokens"]
    return _pooled(rounded((tokens @ given["query"]).mT, tokens.shape[-1]), given, rounded)


def _single(given: Given, rounded: Rounded) -> Outputs:
    tokens = given["tokens"]
    width = tokens.shape[-1]
    q, k, v = (rounded(tokens @ given[name].mT, width) for name in ("w_q", "w_k", "w_v"))
    attended, weights = _attended(_scaled_scores(q, k, rounded), v, hidden(given), rounded)
    return rounded(attended @ given["w_out"].mT, width), weights


def _added(given: Given, rounded: Rounded) -> Outputs:
    """Tokens plus what attention says of them, and its weights."""
    tokens, heads = given["tokens"], given["num_heads"]
    width = tokens.shape[-1]
    projections = zip(given["in_proj_weight"].chunk(3), given["in_proj_bias"].chunk(3), strict=True)
    q, k, v = (
        torch.unflatten(rounded(tokens @ weight.mT + bias, width), -1, (heads, width // heads)).transpose(1, 2)
        for weight, bias in projections
    )  # (batch, heads, length, head_dim)
    hide = hidden(given)
    # Of each sequence or of all of them; the same for every head.
    of_heads = hide if hide is None or hide.dim() == 2 else hide[:, None]
    attended, weights = _attended(_scaled_scores(q, k, rounded), v, of_heads, rounded)
    merged = rounded(attended.transpose(1, 2).flatten(2) @ given["out_proj_weight"].mT + given["out_proj_bias"], width)
    return rounded(tokens + merged), weights.mean(dim=1)


def _block(given: Given, rounded: Rounded) -> Outputs:
    total, weights = _added(given, rounded)
    centred = rounded(total - rounded(total.mean(dim=-1, keepdim=True)))
    variance = rounded(centred.square().mean(dim=-1, keepdim=True))
    normed = rounded(centred / (variance + EPSILON).sqrt())
    return rounded(normed * given["norm_weight"] + given["norm_bias"]), rounded(weights)


def _block_of_torch(given: Given, rounded: Rounded) -> Outputs:
    """With the norm of torch, which on a CPU adds up its parameters' gradients in their own dtype, one by one."""
    total, weights = _added(given, rounded)
    scale, shift = given["norm_weight"], given["norm_bias"]
    return rounded(torch.nn.functional.layer_norm(total, scale.shape, scale, shift, EPSILON)), rounded(weights)


FORMULAS: dict[str, Callable[[Given, Rounded], Outputs]] = {
    "raw_self_attention": _raw,
    "scaled_self_attention": _scaled,
    "additive_pooling": _additive,
    "dot_product_pooling": _dot,
    "single_head": _single,
    "residual_block": _block,
}
# The same by another path, on which rounding costs something else.
PATHS: dict[str, Callable[[Given, Rounded], Outputs]] = {"residual_block": _block_of_torch}
