"""Heads stacked into the batch dimension: the matrix products treat each head as another sequence.

    (B, L, E) → (B, L, H, D) → (B, H, L, D) → (B·H, L, D)

B is the number of sequences, L the length of a sequence, E the width of a token, H the number of
heads, and D the width of a head. In the stacked dimension B·H, the head index varies fastest: entry
b·H + h is head h of sequence b. The implementation ``batched_matmul`` stacks heads in this way, and
takes all arguments of ``torch.nn.MultiheadAttention``. The implementation ``reshaped`` keeps heads
as a separate dimension.

Source: torch.nn.functional.multi_head_attention_forward stacks heads in the same way.
"""

import math

import torch
from torch import Tensor

from attnbench.argument_checks import demand_heads, demand_shapes
from attnmechanisms.modules.arguments import demand
from attnmechanisms.modules.attention import assemble, attend

__all__ = ["stack", "stack_loop", "stacked_heads", "unstack"]


def stack(features: Tensor, num_heads: int) -> Tensor:
    """Split features into heads and stack the heads into the batch dimension.

    Shape: (batch, length, embed_dim), returns (batch·heads, length, head_dim).

    Raises: ValueError, TypeError if embed_dim is not divisible by num_heads.
    """
    demand_shapes(features=(features, "batch length embed_dim"))
    demand_heads(num_heads, {"embed_dim": features.shape[-1]})
    return torch.unflatten(features, -1, (num_heads, -1)).transpose(1, 2).flatten(0, 1)


def stack_loop(features: Tensor, num_heads: int) -> Tensor:
    """Compute ``stack`` one head of one sequence at a time.

    Head h consists of the features h·head_dim to (h + 1)·head_dim − 1 of every token.
    """
    demand_shapes(features=(features, "batch length embed_dim"))
    demand_heads(num_heads, {"embed_dim": features.shape[-1]})
    head_dim = features.shape[-1] // num_heads
    heads = [sequence[:, h * head_dim : (h + 1) * head_dim] for sequence in features for h in range(num_heads)]
    return assemble(heads, (len(features) * num_heads, features.shape[1], head_dim), features)


def unstack(heads: Tensor, num_heads: int) -> Tensor:
    """Concatenate heads from the batch dimension back into features: the inverse of ``stack``.

    Shape: (batch·heads, length, head_dim), returns (batch, length, embed_dim).

    Raises: ValueError, TypeError if the batch is not divisible by num_heads.
    """
    demand_shapes(heads=(heads, "batch·heads length head_dim"))
    demand_heads(num_heads, {"batch·heads": len(heads)})
    return torch.unflatten(heads, 0, (-1, num_heads)).transpose(1, 2).flatten(2)


def stacked_heads(q: Tensor, k: Tensor, v: Tensor, *, num_heads: int, attn_mask: Tensor | None = None) -> Tensor:
    """Compute attention of every head of every sequence in one batch.

    Shape: q (batch, queries, embed_dim) and k and v (batch, keys, embed_dim), which are already
    projected; attn_mask (queries, keys) or (batch·heads, queries, keys), true hides a key; returns
    (batch, queries, embed_dim).

    Raises: ValueError, TypeError if shapes or dtypes do not match.
    """
    demand(q=(q, "batch queries embed_dim"), k=(k, "batch keys embed_dim"), v=(v, "batch keys embed_dim"))
    q, k, v = (stack(x, num_heads) for x in (q, k, v))
    demand(
        q=(q, "batch·heads queries head_dim"),
        k=(k, "batch·heads keys head_dim"),
        attn_mask=(attn_mask, "queries keys | batch·heads queries keys"),
    )
    scores = torch.bmm(q, k.mT) / math.sqrt(q.shape[-1])  # (batch·heads, queries, keys)
    attended, _ = attend(scores, v, hidden=attn_mask)
    return unstack(attended, num_heads)
