"""Attention modules as other libraries write them: each is right but for one deliberate deviation.

Each class repeats in few lines how the named library computes attention, with the parameters and the call of
``torch.nn.MultiheadAttention``. None of them uses attnbench.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, softmax


class _Attention(nn.Module):
    """Multi-head attention by the formula; the methods are the places at which libraries differ."""

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, batch_first: bool = False
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self.in_proj_weight = nn.Parameter(torch.zeros(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        batched = query.dim() == 3
        if not (query.dim() == key.dim() == value.dim() and query.dim() in (2, 3)):
            raise ValueError("query, key and value must all have two or three dimensions")
        if not batched:
            query, key, value = query[None], key[None], value[None]
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        if key.shape != value.shape or len(query) != len(key):
            raise ValueError("key and value must have one shape, and the batch of query")
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            self.split(linear(x, weight, bias))
            for x, weight, bias in zip((query, key, value), self.in_proj_weight.chunk(3), biases, strict=True)
        )
        mask = self.join_masks(attn_mask, key_padding_mask, len(q), q.shape[2], k.shape[2], batched=batched)
        shares = self.normalise(q / math.sqrt(self.head_dim) @ k.mT, mask)
        dropped = dropout(shares, self.dropout, self.training)
        output = self.out_proj((dropped @ v).transpose(1, 2).flatten(2))
        weights = self.give_weights(shares, dropped) if need_weights else None
        if weights is not None:
            weights = weights.mean(dim=1) if average_attn_weights else weights
            weights = weights if batched else weights[0]
        if not batched:
            return output[0], weights
        return (output if self.batch_first else output.transpose(0, 1)), weights

    def split(self, features: Tensor) -> Tensor:
        """Return features as (batch, heads, length, head_dim)."""
        return features.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def join_masks(
        self, mask: Tensor | None, padding: Tensor | None, batch: int, queries: int, keys: int, *, batched: bool
    ) -> Tensor | None:
        """Return the sum of both masks, with minus infinity at hidden keys."""
        total: Tensor | None = None
        dtype = self.out_proj.weight.dtype
        if mask is not None:
            if mask.shape not in ((queries, keys), (batch * self.num_heads, queries, keys)):
                raise ValueError(f"attn_mask has the shape {tuple(mask.shape)}")
            mask = self.make_additive(mask, dtype)
            total = mask if mask.dim() == 2 else mask.unflatten(0, (batch, self.num_heads))
        if padding is not None:
            if padding.shape != ((batch, keys) if batched else (keys,)):
                raise ValueError(f"key_padding_mask has the shape {tuple(padding.shape)}")
            added = self.make_additive(padding, dtype).reshape(batch, 1, 1, keys)
            total = added if total is None else total + added
        return total

    def make_additive(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a mask of numbers to add."""
        if mask.dtype == torch.bool:
            return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)
        if not mask.is_floating_point():
            raise TypeError(f"a mask has the dtype {mask.dtype}")
        return mask

    def normalise(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention weights, which are zero in a fully masked row."""
        if mask is None:
            return softmax(logits, dim=-1)
        hidden = (mask == -math.inf).all(dim=-1, keepdim=True)
        return softmax((logits + mask).masked_fill(hidden, 0.0), dim=-1).masked_fill(hidden, 0.0)

    def give_weights(self, shares: Tensor, dropped: Tensor) -> Tensor:
        """Return the weights for the caller, given those before and after dropout."""
        return dropped


class WeightsBeforeDropout(_Attention):
    """As torchscale, espnet and fairseq: the weights are returned as they were before dropout."""

    def give_weights(self, shares: Tensor, dropped: Tensor) -> Tensor:
        """Return the weights before dropout."""
        return shares


class DetachedWeights(_Attention):
    """As labml: the weights are kept for plots, outside the graph."""

    def give_weights(self, shares: Tensor, dropped: Tensor) -> Tensor:
        """Return a detached copy."""
        return dropped.detach()


class LargeNegativeFill(_Attention):
    """As the Annotated Transformer: hidden logits are overwritten by a large negative number."""

    def normalise(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention weights."""
        if mask is None:
            return softmax(logits, dim=-1)
        added = logits + mask.masked_fill(mask == -math.inf, 0.0)
        return softmax(added.masked_fill(mask == -math.inf, torch.finfo(logits.dtype).min), dim=-1)


class LargeNegativeBias(_Attention):
    """As BERT of transformers: the smallest finite number is added to hidden logits."""

    def normalise(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention weights."""
        if mask is None:
            return softmax(logits, dim=-1)
        # In float16 the smallest number does not absorb large logits.
        wide = torch.promote_types(logits.dtype, torch.float32)
        return softmax(logits.to(wide) + mask.to(wide).clamp(min=torch.finfo(wide).min), dim=-1).to(logits.dtype)


class EmptyBatchRaises(_Attention):
    """As many modules: heads are split by ``view(batch, -1, heads, width)``, which has no answer without elements."""

    def split(self, features: Tensor) -> Tensor:
        """Return features as (batch, heads, length, head_dim)."""
        return features.reshape(len(features), -1, self.num_heads, self.head_dim).transpose(1, 2)


class NanGradients(_Attention):
    """As many modules: zero replaces the NaN of a fully masked row after the softmax; NaN comes back in backward."""

    def normalise(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention weights."""
        if mask is None:
            return softmax(logits, dim=-1)
        return softmax(logits + mask, dim=-1).nan_to_num()


class NanRows(_Attention):
    """As the plain formula: a fully masked row is NaN, and so are its gradients."""

    def normalise(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention weights."""
        return softmax(logits if mask is None else logits + mask, dim=-1)
