"""Multi-head attention with heads computed one after another, or with one long projection for all heads.

    head_h = softmax(X W_qʰ (X W_kʰ)ᵀ / √D) X W_vʰ        O = [head_1, …, head_H] W_oᵀ

D is the width of a head. The projection matrices of the heads, stacked by rows, form one long projection. The result of
the long projection, split into heads, equals the results of the separate projections. The implementation ``per_head``
computes separate heads with all arguments of ``torch.nn.MultiheadAttention``.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.2.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnbench.argument_checks import demand_heads
from attnmechanisms.modules.arguments import demand
from attnmechanisms.modules.attention import attend, broadcast_padding_mask

__all__ = ["concatenate_heads", "long_projection", "separate_heads"]

# Projection matrices of queries, keys and values, each (head_dim, width) for one head or (heads·head_dim, width) for
# all heads. A row of a matrix gives one output feature.
Head = tuple[Tensor, Tensor, Tensor]


def separate_heads(
    tokens: Tensor, heads: Sequence[Head], w_o: Tensor, key_padding_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute output and attention weights, one head at a time.

    Shape: tokens (batch, length, width), each matrix in ``heads`` (head_dim, width), w_o (embed_dim, embed_dim),
    key_padding_mask (batch, length), true hides a token; returns (batch, length, embed_dim) and
    (batch, heads, length, length).

    Raises: ValueError, TypeError if shapes or dtypes do not match.
    """
    _check_heads(heads)
    outputs, weights = [], []
    for w_q, w_k, w_v in heads:
        _check(tokens, (w_q, w_k, w_v), key_padding_mask)
        q, k, v = linear(tokens, w_q), linear(tokens, w_k), linear(tokens, w_v)
        output, row = attend(q @ k.mT / math.sqrt(len(w_q)), v, hidden=broadcast_padding_mask(key_padding_mask))
        outputs.append(output)
        weights.append(row)
    return _project_output(torch.cat(outputs, dim=-1), w_o), torch.stack(weights, dim=1)


def concatenate_heads(heads: Sequence[Head]) -> Head:
    """Concatenate the projection matrices of all heads, for queries, keys and values separately.

    Shape: each returned matrix (heads·head_dim, width).

    Raises: ValueError, TypeError if shapes or dtypes do not match.
    """
    _check_heads(heads)
    weights = {f"heads[{h}][{n}]": weight for h, head in enumerate(heads) for n, weight in enumerate(head)}
    demand(**{name: (weight, "head_dim width") for name, weight in weights.items()})
    w_q, w_k, w_v = (torch.cat(parts) for parts in zip(*heads, strict=True))
    return w_q, w_k, w_v


def long_projection(
    tokens: Tensor,
    projections: Head,
    w_o: Tensor,
    *,
    num_heads: int,
    key_padding_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute ``separate_heads`` by one projection for all heads, whose result is split into heads.

    Shape: each matrix in ``projections`` (embed_dim, width); the other arguments and the results as
    in ``separate_heads``.
    """
    _check(tokens, projections, key_padding_mask)
    demand_heads(num_heads, {"embed_dim": len(projections[0])})
    # (batch, heads, length, head_dim): the heads come before the length, because the matrix
    # products below multiply the last two dimensions.
    q, k, v = (torch.unflatten(linear(tokens, w), -1, (num_heads, -1)).transpose(1, 2) for w in projections)
    hidden = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
    attended, weights = attend(q @ k.mT / math.sqrt(q.shape[-1]), v, hidden=hidden)
    return _project_output(attended.transpose(1, 2).flatten(2), w_o), weights


def _check_heads(heads: Sequence[Head]) -> None:
    if not heads:
        raise ValueError("heads must contain at least one head, got none")
    for h, head in enumerate(heads):
        if len(head) != 3:
            raise ValueError(f"heads[{h}] must be 3 weight matrices (of queries, keys and values), got {len(head)}")


def _check(tokens: Tensor, weights: Head, key_padding_mask: Tensor | None) -> None:
    w_q, w_k, w_v = weights
    demand(
        tokens=(tokens, "batch length width"),
        w_q=(w_q, "rows width"),
        w_k=(w_k, "rows width"),
        w_v=(w_v, "rows width"),
        key_padding_mask=(key_padding_mask, "batch length"),
    )


def _project_output(heads: Tensor, w_o: Tensor) -> Tensor:
    """Apply the output projection to the concatenated heads."""
    demand(heads=(heads, "batch length embed_dim"), w_o=(w_o, "embed_dim embed_dim"))
    return linear(heads, w_o)
