"""The mask surface in one place.

Two polarities exist. The reference's boolean masks are true where a key is *hidden*; kernels and
``scaled_dot_product_attention`` take *keep* masks, true where a key may be attended to. Additive masks are
added to the logits; minus infinity hides. A row from which every key is hidden attends to nothing: its
attention is zero.

A padding mask (batch, keys) is made by ``from_tokens`` or ``from_lengths``, a causal mask (queries, keys) by
``causal``, what both say together by ``union``: all hide unless ``polarity`` asks for the other, and ``inverted`` turns
one into the other.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from attnbench.argument_checks import (
    demand_dtype,
    demand_heads,
    demand_shapes,
    demand_tensor,
    demand_whole_numbers,
    told,
)

__all__ = [
    "CORNERS",
    "Polarity",
    "additive",
    "causal",
    "combined",
    "demand_positions",
    "extended",
    "from_additive",
    "from_lengths",
    "from_tokens",
    "inverted",
    "over_heads",
    "over_queries",
    "positional",
    "reference_mask",
    "softmax_over_visible",
    "union",
]

# What true says of a key in a boolean mask: hidden, as in the reference, or visible, as in kernels.
Polarity = Literal["hide", "keep"]
# Where the first query of a causal mask stands: at the first key, or as far from the end as there are queries.
CORNERS = ("top_left", "bottom_right")


def causal(queries: int, keys: int, device: torch.device | str | None = None, *, polarity: Polarity = "hide") -> Tensor:
    """Mask of shape (queries, keys) in which query i sees keys 0 to i (aligned at the top left).

    Raises: TypeError, ValueError where these are no numbers of tokens.
    """
    demand_whole_numbers(0, queries=queries, keys=keys)
    return _said(torch.ones(queries, keys, dtype=torch.bool, device=device).tril(), "keep", polarity)


def from_lengths(lengths: Tensor, keys: int, *, polarity: Polarity = "hide") -> Tensor:
    """Mask of shape (batch, keys) that hides from each sequence's length on: a key_padding_mask.

    Raises: TypeError, ValueError where these are no lengths of sequences of so many keys.
    """
    demand_whole_numbers(0, keys=keys)
    lengths = _lengths("lengths", lengths, keys)
    return _said(torch.arange(keys, device=lengths.device) >= lengths[:, None], "hide", polarity)


def from_tokens(tokens: Tensor, padding: int = 0, *, polarity: Polarity = "hide") -> Tensor:
    """Mask of shape (batch, keys) that hides every token with the number of padding: a key_padding_mask.

    Raises: TypeError, ValueError where these are no token numbers of a batch.
    """
    demand_tensor("tokens", tokens, "whole numbers")
    demand_shapes(tokens=(tokens, "batch keys"))
    demand_whole_numbers(padding=padding)
    # In a narrow dtype another number could wrap around to that of padding.
    return _said(tokens.long() == padding, "hide", polarity)


def union(key_padding_mask: Tensor, attn_mask: Tensor, *, polarity: Polarity = "hide") -> Tensor:
    """Mask of shape (batch, queries, keys) that hides what either hides; all three are of one polarity.

    Shape: key_padding_mask (batch, keys), attn_mask (queries, keys) or (batch, queries, keys).

    Raises: TypeError, ValueError where these are no such masks.
    """
    _demand_polarity(polarity)
    demand_tensor("key_padding_mask", key_padding_mask, "boolean")
    demand_tensor("attn_mask", attn_mask, "boolean")
    demand_shapes(
        key_padding_mask=(key_padding_mask, "batch keys"),
        attn_mask=(attn_mask, "queries keys | batch queries keys"),
    )
    padding = over_queries(key_padding_mask, attn_mask.shape[-2])
    return padding | attn_mask if polarity == "hide" else padding & attn_mask


def over_queries(key_padding_mask: Tensor, queries: int) -> Tensor:
    """A padding mask repeated for every query, in its own polarity.

    Shape: (batch, keys) to (batch, queries, keys).

    Raises: TypeError, ValueError.
    """
    demand_shapes(key_padding_mask=(key_padding_mask, "batch keys"))
    demand_whole_numbers(0, queries=queries)
    return key_padding_mask[:, None, :].expand(-1, queries, -1)


def over_heads(mask: Tensor, num_heads: int) -> Tensor:
    """A mask of each sequence repeated for every head, in its own polarity; flattened over both it is an attn_mask.

    Shape: (batch, queries, keys) to (batch, heads, queries, keys).

    Raises: TypeError, ValueError.
    """
    demand_shapes(mask=(mask, "batch queries keys"))
    demand_heads(num_heads)
    return mask[:, None].expand(-1, num_heads, -1, -1)


def inverted(mask: Tensor) -> Tensor:
    """A hide mask as a keep mask, or a keep mask as a hide mask.

    Raises: TypeError where the mask is not boolean: numbers to be added have no polarity.
    """
    demand_tensor("mask", mask, "boolean")
    return ~mask


def from_additive(mask: Tensor, *, polarity: Polarity = "keep") -> Tensor:
    """Mask that says what 0 and minus infinity say when they are added: the inverse of ``additive``.

    Raises: TypeError, ValueError where it holds other numbers, which no boolean mask can say.
    """
    demand_tensor("mask", mask, "floating point")
    hides = mask == float("-inf")
    others = mask[~hides & (mask != 0)]
    if others.numel():
        raise ValueError(f"mask must hold only 0 and -inf, got {others[0].item():g}; boolean masks cannot add numbers")
    return _said(hides, "hide", polarity)


def _said(mask: Tensor, own: Polarity, wanted: Polarity) -> Tensor:
    """A mask of its own polarity in the one that is wanted."""
    _demand_polarity(wanted)
    return mask if own == wanted else ~mask


def _demand_polarity(polarity: str) -> None:
    if polarity not in ("hide", "keep"):
        raise ValueError(f"polarity must be 'hide' (true hides) or 'keep' (true keeps), got {polarity!r}")


def _lengths(name: str, lengths: Tensor, keys: int) -> Tensor:
    """Lengths of sequences of so many keys, in a dtype whose differences do not wrap around. Shape: (batch)."""
    demand_tensor(name, lengths, "whole numbers")
    demand_shapes(**{name: (lengths, "batch")})
    lengths = lengths.long()
    # On a device, looking at them would wait for it in every call; a compiler cannot look at all.
    if lengths.device.type == "cpu" and not torch.compiler.is_compiling() and len(lengths):
        fewest, most = (int(end) for end in lengths.aminmax())
        if fewest < 0 or most > keys:
            raise ValueError(f"{name} must be 0 to keys = {keys}, got {fewest} to {most}")
    return lengths


def demand_positions(keys: int, *, causal: str | None, window: int | None, key_lengths: Tensor | None) -> None:
    """Refuse what are no positions among so many keys, as ``positional`` takes them.

    Raises: TypeError, ValueError.
    """
    if causal is not None and not (isinstance(causal, str) and causal in CORNERS):
        raise ValueError(f"causal must be {' or '.join(map(repr, CORNERS))}, or None, got {told(causal)}")
    if window is not None:
        demand_whole_numbers(0, window=window)
    if key_lengths is not None:
        _lengths("key_lengths", key_lengths, keys)


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

    What ``demand_positions`` has let through is not looked at again: this is done in every call of a kernel.

    Shape: key_lengths (batch); returns (batch or 1, 1, queries or 1, keys) and (batch or 1, heads, queries, keys).
    """
    at = torch.arange(keys, device=device)
    last = keys if key_lengths is None else key_lengths.long()[:, None, None, None]
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
    """Keep mask as a number to add to logits: 0 where true, minus infinity where false.

    Raises: TypeError where the mask is not boolean, or the dtype has no minus infinity.
    """
    demand_tensor("keep", keep, "boolean")
    demand_dtype(dtype)
    return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill(~keep, float("-inf"))


def combined(first: Tensor | None, second: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What two masks (boolean keep, or additive) say together: hidden by either, numbers added.

    Raises: TypeError where these are no such masks.
    """
    for name, mask in (("first", first), ("second", second)):
        if mask is not None:
            demand_tensor(name, mask, "boolean", "floating point")
    demand_dtype(dtype)
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

    Raises: TypeError, ValueError where these are no such masks.
    """
    if attn_mask is not None:
        attn_mask = _kept("attn_mask", attn_mask, {2: "queries keys", 3: "batch·heads queries keys"})
        if attn_mask.dim() == 3:
            demand_heads(num_heads, batch·heads=attn_mask.shape[0])
            batch = attn_mask.shape[0] // num_heads
            attn_mask = torch.unflatten(attn_mask, 0, (batch, num_heads))  # (batch, heads, queries, keys)
    if key_padding_mask is not None:
        key_padding_mask = _kept("key_padding_mask", key_padding_mask, {2: "batch keys"})
        key_padding_mask = key_padding_mask[:, None, None, :]  # (batch, 1, 1, keys)
    return combined(attn_mask, key_padding_mask, dtype)


def _kept(name: str, mask: Tensor, shapes: Mapping[int, str]) -> Tensor:
    """A mask of the reference in the polarity of kernels; ``shapes`` are by their number of dimensions."""
    demand_tensor(name, mask, "boolean", "floating point")
    if mask.dim() not in shapes:  # every call of a kernel comes here: the words are read only where they are needed
        demand_shapes(**{name: (mask, " | ".join(shapes.values()))})
    return ~mask if mask.dtype == torch.bool else mask


def extended(mask: Tensor | None, columns: int) -> Tensor | None:
    """Mask with extra key columns at the end that every query may see (bias_k, the zero key).

    Raises: TypeError, ValueError where this is no mask, or no number of columns.
    """
    demand_whole_numbers(0, columns=columns)
    if mask is not None:
        demand_tensor("mask", mask, "boolean", "floating point")
    if mask is None or columns == 0:
        return mask
    visible = True if mask.dtype == torch.bool else 0.0
    return torch.nn.functional.pad(mask, (0, columns), value=visible)


def softmax_over_visible(logits: Tensor) -> Tensor:
    """Softmax over the last dimension; all zero, with zero gradient, where every logit is minus infinity."""
    empty = (logits == float("-inf")).all(dim=-1, keepdim=True)
    return torch.softmax(logits.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
