"""The mask surface in one place.

Two polarities exist. The reference's boolean masks are true where a key is *hidden*; kernels and
``scaled_dot_product_attention`` take *keep* masks, true where a key may be attended to. Additive masks are
added to the logits; minus infinity hides. A row from which every key is hidden attends to nothing: its
attention is zero.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "additive",
    "causal",
    "combined",
    "extended",
    "from_lengths",
    "positional",
    "reference_mask",
    "softmax_over_visible",
]


def causal(queries: int, keys: int, device: torch.device | str | None = None) -> Tensor:
    """Keep mask of shape (queries, keys) in which query i sees keys 0 to i (aligned at the top left)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


def from_lengths(lengths: Tensor, keys: int) -> Tensor:
    """Hide mask of shape (batch, keys), true from each sequence's length on: a key_padding_mask."""
    return torch.arange(keys, device=lengths.device) >= lengths[:, None]


def positional(
    queries: int,
    keys: int,
    *,
    causal: str | None,
    window: int | None,
    key_lengths: Tensor | None,
    slopes: Sequence[float] | None,
    dtype: torch.dtype,
    device: torch.device | str | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """What positions alone say of attention: a keep mask, and numbers to add; each None where they say nothing.

    ``causal`` is "top_left", "bottom_right" or None; ``window`` the largest distance that is seen; ``slopes`` are those
    of ALiBi, one for each head. Unless it is "top_left", the last query stands where the last key of its sequence does.

    Shape: key_lengths (batch); returns (batch or 1, 1, queries or 1, keys) and (batch or 1, heads, queries, keys).
    """
    at = torch.arange(keys, device=device)
    last = keys if key_lengths is None else key_lengths[:, None, None, None]
    rows = torch.arange(queries, device=device)[None, None, :, None]
    apart = rows - at if causal == "top_left" else rows + (last - queries) - at
    keep = None if key_lengths is None else at < last
    if causal is not None:
        keep = apart >= 0 if keep is None else keep & (apart >= 0)
    if window is not None:
        near = apart.abs() <= window
        keep = near if keep is None else keep & near
    if slopes is None:
        return keep, None
    # In half precision a slope and a distance of more than 8 or 11 bits would each be rounded.
    wide = torch.promote_types(dtype, torch.float32)
    slope = torch.tensor(slopes, dtype=wide, device=device)[:, None, None]
    return keep, (-slope * apart.abs()).to(dtype)


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
