"""Scaled dot-product attention as a function, with a keep mask and dropout.

    O = (softmax(Q Kᵀ / √d + M) ⊙ Z / (1 − p)) V

d is the width of a key. M is −∞ where the keep mask is false, and 0 elsewhere. An element of Z is 0
with probability p and 1 otherwise. A dropped attention weight is 0. The kept weights are scaled up,
so that dropout does not change the expectation of a weight.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, equation 1; Srivastava et al. 2014,
https://jmlr.org/papers/v15/srivastava14a.html.
"""

import math

import torch
from torch import Tensor

from attnbench.masks import inverted
from attnmechanisms.modules.arguments import demand
from attnmechanisms.modules.attention import assemble, attend, attend_loop, dot, weighted_sum

__all__ = ["scaled_dot_product", "scaled_dot_product_loop"]


def scaled_dot_product(
    q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None, dropout_p: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute output and attention weights (after dropout), by matrix products.

    Shape: q (batch, queries, head_dim), k (batch, keys, head_dim), v (batch, keys, width), keep
    (queries, keys) or (batch, queries, keys), true keeps a key; returns (batch, queries, width) and
    (batch, queries, keys).

    Raises: ValueError, TypeError if shapes or dtypes do not match, or ``dropout_p`` is not in [0, 1).
    """
    _check(q, k, v, keep)
    hidden = None if keep is None else inverted(keep)
    output, weights = attend(q @ k.mT / math.sqrt(q.shape[-1]), v, hidden=hidden)
    if not dropout_p:
        return output, weights
    weights = weights * _draw_dropout_factors(weights, dropout_p)
    return weights @ v, weights


def scaled_dot_product_loop(
    q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None, dropout_p: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute ``scaled_dot_product`` one number at a time.

    After the same ``torch.manual_seed``, this function and ``scaled_dot_product`` drop the same
    attention weights.
    """
    _check(q, k, v, keep)
    root = math.sqrt(q.shape[-1])
    hidden = None if keep is None else inverted(keep)
    output, weights = attend_loop(lambda query, key: dot(query, key) / root, q, k, v, hidden=hidden)
    if not dropout_p:
        return output, weights
    weights = weights * _draw_dropout_factors(weights, dropout_p)
    rows = [weighted_sum(row, v[b]) for b, sequence in enumerate(weights) for row in sequence]
    return assemble(rows, output.shape, output), weights


def _check(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> None:
    demand(
        q=(q, "batch queries head_dim"),
        k=(k, "batch keys head_dim"),
        v=(v, "batch keys width"),
        keep=(keep, "queries keys | batch queries keys"),
    )


def _draw_dropout_factors(weights: Tensor, dropout_p: float) -> Tensor:
    """Draw a factor for each attention weight: 0 with probability p, else 1 / (1 − p).

    Shape: returns the shape of weights.

    Raises: ValueError if ``dropout_p`` is not in [0, 1).
    """
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p must be at least 0 and less than 1, got {dropout_p:g}")
    return (torch.rand_like(weights) >= dropout_p) / (1 - dropout_p)
