"""The mask surface in one place.

Two polarities exist. The reference's boolean masks are true where a key is *hidden*; kernels and
``scaled_dot_product_attention`` take *keep* masks, true where a key may be attended to. Additive masks are
added to the logits; minus infinity hides. A row from which every key is hidden attends to nothing: its
attention is zero.
"""

import torch
from torch import Tensor

__all__ = [
    "additive",
    "causal",
    "combined",
    "extended",
    "from_lengths",
    "reference_mask",
    "softmax_over_visible",
]


def causal(queries: int, keys: int, device: torch.device | str | None = None) -> Tensor:
    """Keep mask of shape (queries, keys) in which query i sees keys 0 to i (aligned at the top left)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


def from_lengths(lengths: Tensor, keys: int) -> Tensor:
    """Hide mask of shape (batch, keys), true from each sequence's length on: a key_padding_mask."""
    return torch.arange(keys, device=lengths.device) >= lengths[:, None]


def additive(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """Keep mask as a number to add to logits: 0 where true, minus infinity where false."""
    return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill(~keep, float("-inf"))


def combined(first: Tensor | None, second: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What two masks (boolean keep, or additive) say together: hidden by either, numbers added."""
    if first is None or second is None:
        return second if first is None else first
    if first.dtype == torch.bool and second.dtype == torch.bool:
        return first & second
    return _numbers(first, dtype) + _numbers(second, dtype)


def _numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return additive(mask, dtype) if mask.dtype == torch.bool else mask.to(dtype)


def reference_mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, *, num_heads: int, dtype: torch.dtype
) -> Tensor | None:
    """The reference's two masks as one kernel mask: boolean with true = keep, or additive.

    Shape: attn_mask (queries, keys) or (batch·heads, queries, keys); key_padding_mask (batch, keys);
    returns something broadcastable to (batch, heads, queries, keys).
    """
    if attn_mask is not None:
        attn_mask = _kept(attn_mask)
        if attn_mask.dim() == 3:
            batch = attn_mask.shape[0] // num_heads
            attn_mask = torch.unflatten(attn_mask, 0, (batch, num_heads))  # (batch, heads, queries, keys)
    if key_padding_mask is not None:
        key_padding_mask = _kept(key_padding_mask)[:, None, None, :]  # (batch, 1, 1, keys)
    return combined(attn_mask, key_padding_mask, dtype)


def _kept(mask: Tensor) -> Tensor:
    return ~mask if mask.dtype == torch.bool else mask


def extended(mask: Tensor | None, columns: int) -> Tensor | None:
    """Mask with extra key columns at the end that every query may see (bias_k, the zero key)."""
    if mask is None or columns == 0:
        return mask
    visible = True if mask.dtype == torch.bool else 0.0
    return torch.nn.functional.pad(mask, (0, columns), value=visible)


def softmax_over_visible(logits: Tensor) -> Tensor:
    """Softmax over the last dimension; all zero, with zero gradient, where every logit is minus infinity."""
    empty = (logits == float("-inf")).all(dim=-1, keepdim=True)
    return torch.softmax(logits.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
