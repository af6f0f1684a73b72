"""Heads stacked into the batch: to the matrix products that follow, a head is one more sequence.

    (B, L, E) → (B, L, H, D) → (B, H, L, D) → (B·H, L, D)

Heads count fastest: entry b·H + h is head h of sequence b. As an implementation with all of the reference's arguments:
``batched_matmul``; with heads as a dimension of their own: ``reshaped``.

Source: torch.nn.functional.multi_head_attention_forward, which stacks them so.
"""

import math

import torch
from torch import Tensor

from attnbench.argument_checks import demand_heads, demand_shapes
from attnmechanisms.modules.arguments import demand
from attnmechanisms.modules.attention import assembled, attend

__all__ = ["stacked", "stacked_heads", "stacked_loop", "unstacked"]


def stacked(features: Tensor, num_heads: int) -> Tensor:
    """Heads out of features, into the batch.

    Shape: (batch, length, embed_dim), returns (batch·heads, length, head_dim).

    Raises: ValueError, TypeError where embed_dim is not divisible by num_heads.
    """
    demand_shapes(features=(features, "batch length embed_dim"))
    demand_heads(num_heads, embed_dim=features.shape[-1])
    return torch.unflatten(features, -1, (num_heads, -1)).transpose(1, 2).flatten(0, 1)


def stacked_loop(features: Tensor, num_heads: int) -> Tensor:
    """The same, a head of a sequence at a time: head h is features h·D to (h + 1)·D of every token."""
    demand_shapes(features=(features, "batch length embed_dim"))
    demand_heads(num_heads, embed_dim=features.shape[-1])
    head_dim = features.shape[-1] // num_heads
    heads = [sequence[:, h * head_dim : (h + 1) * head_dim] for sequence in features for h in range(num_heads)]
    return assembled(heads, (len(features) * num_heads, features.shape[1], head_dim), features)


def unstacked(heads: Tensor, num_heads: int) -> Tensor:
    """Heads out of the batch, side by side again: the inverse of ``stacked``.

    Shape: (batch·heads, length, head_dim), returns (batch, length, embed_dim).

    Raises: ValueError, TypeError where the batch is not divisible by num_heads.
    """
    demand_shapes(heads=(heads, "batch·heads length head_dim"))
    demand_heads(num_heads, batch·heads=len(heads))
    return torch.unflatten(heads, 0, (-1, num_heads)).transpose(1, 2).flatten(2)


def stacked_heads(q: Tensor, k: Tensor, v: Tensor, *, num_heads: int, attn_mask: Tensor | None = None) -> Tensor:
    """Attention of every head of every sequence in one batch.

    Shape: q (batch, queries, embed_dim), k and v (batch, keys, embed_dim), all projected; attn_mask (queries, keys)
    or (batch·heads, queries, keys), true hides; returns (batch, queries, embed_dim).

    Raises: ValueError, TypeError where these do not fit together.
    """
    demand(q=(q, "batch queries embed_dim"), k=(k, "batch keys embed_dim"), v=(v, "batch keys embed_dim"))
    q, k, v = (stacked(x, num_heads) for x in (q, k, v))
    demand(
        q=(q, "batch·heads queries head_dim"),
        k=(k, "batch·heads keys head_dim"),
        attn_mask=(attn_mask, "queries keys | batch·heads queries keys"),
    )
    scores = torch.bmm(q, k.mT) / math.sqrt(q.shape[-1])  # (batch·heads, queries, keys)
    attended, _ = attend(scores, v, hidden=attn_mask)
    return unstacked(attended, num_heads)
