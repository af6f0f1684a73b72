"""Online softmax: keys in tiles with a running maximum and sum, without a matrix of queries by keys.

Forward, over tiles t of the keys, with x_t = scale · Q K_tᵀ + M_t. At the start m = −∞, s = 0 and o
= 0:

    m' = max(m, max x_t);  s ← s · e^(m−m') + Σ e^(x_t−m');  o ← o · e^(m−m') + e^(x_t−m') V_t;  m ← m'
    O = o / s,  L = m + log s

Backward saves Q, K, V, O and L, and recomputes the weights of each tile, with δ = Σ_d O · dO:

    P_t = e^(x_t−L);  dV_t = P_tᵀ dO;  dS_t = P_t · (dO V_tᵀ − δ);  dQ += scale · dS_t K_t;  dK_t = scale · dS_tᵀ Q

M is the additive mask. Only one tile of logits is in memory at a time. The memory of a call without
a mask therefore grows linearly with the length. Half-precision numbers are summed in float32. In a
fully masked row (a query that sees no key) O = 0.

Shape: Q (batch, heads, queries, head_dim), K (batch, heads, keys, head_dim), V (batch, heads, keys, head_dim_v),
O (batch, heads, queries, head_dim_v), L (batch, heads, queries, 1).
Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018, https://arxiv.org/abs/1805.02867;
backward: Dao et al., FlashAttention, 2022, https://arxiv.org/abs/2205.14135, algorithm 4.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.interface import Policies
from attnbench.kernel import core_from_kernel, from_kernel

__all__ = ["CORE_ONLINE_SOFTMAX", "ONLINE_SOFTMAX", "online_softmax"]

# Number of keys in a tile, as in fused kernels: small enough for a small tile of logits, and large
# enough for efficient matrix products.
KEYS_PER_TILE = 128
# Other numbers, by which ``attnbench invariance`` shows how far the bits depend on the tiles.
OTHER_KEYS_PER_TILE = (16, 32, 64)


def online_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    keys_per_tile: int = KEYS_PER_TILE,
) -> Tensor:
    """Compute attention tile by tile; ``mask`` is boolean (true keeps) or additive."""
    return _OnlineSoftmax.apply(q, k, v, mask, is_causal, scale, keys_per_tile)  # type: ignore[no-any-return, no-untyped-call]


class _OnlineSoftmax(torch.autograd.Function):
    """Forward and backward of the formulas in the docstring of this module."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,  # noqa: FBT001  # autograd functions take no keywords
        scale: float,
        keys_per_tile: int,
    ) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            output, logsumexp = _compute_forward(
                q, k, v, mask, is_causal=is_causal, scale=scale, keys_per_tile=keys_per_tile
            )
        ctx.save_for_backward(q, k, v, mask, output, logsumexp)
        ctx.options = (is_causal, scale, keys_per_tile)
        return output.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, output, logsumexp = ctx.saved_tensors
        is_causal, scale, keys_per_tile = ctx.options
        with torch.autocast(q.device.type, enabled=False):
            wide = output.dtype
            incoming = gradients[0].to(wide)
            delta = (output * incoming).sum(dim=-1, keepdim=True)  # (batch, heads, queries, 1)
            wide_q = q.to(wide)
            of_q = torch.zeros_like(wide_q)
            of_k: list[Tensor] = []
            of_v: list[Tensor] = []
            of_mask = torch.zeros_like(mask, dtype=wide) if ctx.needs_input_grad[3] else None
            for begin, end in _split_into_tiles(k, keys_per_tile):
                keys, values = k[:, :, begin:end].to(wide), v[:, :, begin:end].to(wide)
                logits = _compute_logits(wide_q * scale, keys, mask, begin, is_causal=is_causal)
                weights = (logits - logsumexp).exp()
                of_v.append(weights.transpose(2, 3) @ incoming)
                of_logits = weights * (incoming @ values.transpose(2, 3) - delta)
                of_q += scale * (of_logits @ keys)
                of_k.append(scale * (of_logits.transpose(2, 3) @ wide_q))
                if of_mask is not None:
                    part = _select_columns(of_mask, begin, end)
                    part += of_logits.sum_to_size(part.shape)
        whole = [torch.cat(parts, dim=2) if parts else torch.zeros_like(like) for parts, like in ((of_k, k), (of_v, v))]
        found = (of_q, *whole, of_mask)
        wanted = (q, k, v, mask)
        cast = (None if one is None else one.to(like.dtype) for one, like in zip(found, wanted, strict=True))
        return (*cast, None, None, None)


def _compute_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool, scale: float, keys_per_tile: int
) -> tuple[Tensor, Tensor]:
    """Compute output and logsumexp in float32 or float64; in a fully masked row both are 0.

    Shape: returns (batch, heads, queries, head_dim_v) and (batch, heads, queries, 1).
    """
    scaled = q.to(torch.promote_types(q.dtype, torch.float32)) * scale
    largest = scaled.new_full((*q.shape[:3], 1), -math.inf)
    total, output = torch.zeros_like(largest), scaled.new_zeros(*q.shape[:3], v.shape[3])
    for begin, end in _split_into_tiles(k, keys_per_tile):
        keys, values = k[:, :, begin:end].to(scaled.dtype), v[:, :, begin:end].to(scaled.dtype)
        logits = _compute_logits(scaled, keys, mask, begin, is_causal=is_causal)
        now = torch.maximum(largest, logits.amax(dim=-1, keepdim=True))
        # Replace a maximum of −∞ (no visible key so far) by 0, because −∞ − (−∞) would be NaN.
        seen = now.masked_fill(now == -math.inf, 0.0)
        before = (largest - seen).exp()
        exponentials = (logits - seen).exp()
        total = total * before + exponentials.sum(dim=-1, keepdim=True)
        output = output * before + exponentials @ values
        largest = now
    empty = total == 0
    logsumexp = largest.masked_fill(empty, 0.0) + total.masked_fill(empty, 1.0).log()
    return output / total.masked_fill(empty, 1.0), logsumexp


def _split_into_tiles(k: Tensor, keys_per_tile: int) -> Iterator[tuple[int, int]]:
    """Yield the index of the first key of each tile and the index of the first key after the tile."""
    keys = k.shape[2]
    return ((begin, min(begin + keys_per_tile, keys)) for begin in range(0, keys, keys_per_tile))


def _compute_logits(scaled: Tensor, keys: Tensor, mask: Tensor | None, begin: int, *, is_causal: bool) -> Tensor:
    """Compute the logits of one tile. Shape: (batch, heads, queries, keys of the tile)."""
    logits = scaled @ keys.transpose(2, 3)
    end = begin + keys.shape[2]
    if is_causal:
        numbers = torch.arange(scaled.shape[2], device=scaled.device)
        logits = logits.masked_fill(numbers[:, None] < torch.arange(begin, end, device=scaled.device), -math.inf)
    if mask is None:
        return logits
    part = _select_columns(mask, begin, end)
    return logits.masked_fill(~part, -math.inf) if mask.dtype == torch.bool else logits + part


def _select_columns(mask: Tensor, begin: int, end: int) -> Tensor:
    """Return the part of a mask for the keys of one tile.

    A mask whose last dimension has size 1 is returned whole, because it broadcasts over all keys.
    """
    return mask if mask.shape[-1] == 1 else mask[..., begin:end]


# The backward pass is an autograd.Function whose forward has ctx, which transforms of torch.func refuse.
POLICIES = Policies(transforms="refused")
ONLINE_SOFTMAX = from_kernel(online_softmax, source="https://arxiv.org/abs/1805.02867", policies=POLICIES)
CORE_ONLINE_SOFTMAX = core_from_kernel(ONLINE_SOFTMAX)
SPLITS = {
    keys: from_kernel(partial(online_softmax, keys_per_tile=keys), name="online_softmax", policies=POLICIES)
    for keys in OTHER_KEYS_PER_TILE
}
ONLINE_SOFTMAX.key_splits = SPLITS
CORE_ONLINE_SOFTMAX.key_splits = {keys: core_from_kernel(split) for keys, split in SPLITS.items()}
