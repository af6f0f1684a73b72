"""Functions that make attention masks, combine masks, and convert between the masks of the reference and of kernels.

The reference is ``torch.nn.MultiheadAttention``. Kernels are functions such as ``scaled_dot_product_attention``.

A boolean mask has one of two polarities. A *hide* mask is true where a key is hidden; the reference takes hide masks. A
*keep* mask is true where a key may be attended to; kernels take keep masks. An additive mask is added to the logits: a
value of minus infinity hides a key. In a fully masked row every key is hidden, and the attention weights are zero.

``from_tokens`` and ``from_lengths`` make a padding mask (batch, keys). ``causal`` makes a causal mask (queries, keys).
``union`` combines a padding mask with a causal mask or another attention mask. These four functions return hide masks
by default, and keep masks with ``polarity="keep"``. ``inverted`` converts one polarity into the other.
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
    describe_argument,
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

# Meaning of true in a boolean mask. "hide": the key is hidden, as in the reference. "keep": the key is visible, as in
# kernels.
Polarity = Literal["hide", "keep"]
# Alignments of a causal mask. "top_left": the first query has the position of the first key. "bottom_right": the last
# query has the position of the last key.
CORNERS = ("top_left", "bottom_right")


def causal(queries: int, keys: int, device: torch.device | str | None = None, *, polarity: Polarity = "hide") -> Tensor:
    """Return the mask (queries, keys) in which query i sees keys 0 to i (aligned at the top left).

    Raises: TypeError, ValueError where queries or keys is not an integer of at least 0.
    """
    demand_whole_numbers(0, queries=queries, keys=keys)
    return _convert_polarity(torch.ones(queries, keys, dtype=torch.bool, device=device).tril(), "keep", polarity)


def from_lengths(lengths: Tensor, keys: int, *, polarity: Polarity = "hide") -> Tensor:
    """Return the key_padding_mask (batch, keys) that hides all but the first ``lengths[i]`` keys of sequence i.

    Raises: TypeError, ValueError where a length is not an integer from 0 to ``keys``; the range is checked on the CPU
    only.
    """
    demand_whole_numbers(0, keys=keys)
    lengths = _demand_lengths("lengths", lengths, keys)
    return _convert_polarity(torch.arange(keys, device=lengths.device) >= lengths[:, None], "hide", polarity)


def from_tokens(tokens: Tensor, padding: int = 0, *, polarity: Polarity = "hide") -> Tensor:
    """Return the key_padding_mask (batch, keys) that hides every token whose id is ``padding``.

    Raises: TypeError, ValueError where ``tokens`` is not a tensor of integers of shape (batch, keys).
    """
    demand_tensor("tokens", tokens, "whole numbers")
    demand_shapes(tokens=(tokens, "batch keys"))
    demand_whole_numbers(padding=padding)
    # The ids are compared as int64: in a narrow dtype ``padding`` could wrap around to the id of another token.
    return _convert_polarity(tokens.long() == padding, "hide", polarity)


def union(key_padding_mask: Tensor, attn_mask: Tensor, *, polarity: Polarity = "hide") -> Tensor:
    """Return the mask (batch, queries, keys) that hides every key that at least one of two masks hides.

    Both given masks have the ``polarity`` of the returned mask.

    Shape: key_padding_mask (batch, keys), attn_mask (queries, keys) or (batch, queries, keys).

    Raises: TypeError where a mask is not boolean; ValueError where a mask has another shape.
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
    """Repeat a padding mask for every query, without changing the polarity.

    Shape: (batch, keys) to (batch, queries, keys).

    Raises: TypeError, ValueError where an argument is not of the required type or shape.
    """
    demand_shapes(key_padding_mask=(key_padding_mask, "batch keys"))
    demand_whole_numbers(0, queries=queries)
    return key_padding_mask[:, None, :].expand(-1, queries, -1)


def over_heads(mask: Tensor, num_heads: int) -> Tensor:
    """Repeat the mask of each sequence for every head, without changing the polarity.

    After flattening batch and heads into one dimension, the result is an attn_mask for the reference.

    Shape: (batch, queries, keys) to (batch, heads, queries, keys).

    Raises: TypeError, ValueError where an argument is not of the required type or shape.
    """
    demand_shapes(mask=(mask, "batch queries keys"))
    demand_whole_numbers(1, num_heads=num_heads)
    return mask[:, None].expand(-1, num_heads, -1, -1)


def inverted(mask: Tensor) -> Tensor:
    """Return the keep mask of a hide mask, or the hide mask of a keep mask.

    Raises: TypeError where the mask is not boolean: additive masks have no polarity.
    """
    demand_tensor("mask", mask, "boolean")
    return ~mask


def from_additive(mask: Tensor, *, polarity: Polarity = "keep") -> Tensor:
    """Convert an additive mask of 0 and minus infinity to a boolean mask: the inverse of ``additive``.

    Raises: TypeError where the mask is not floating point; ValueError where it contains values other than 0 and minus
    infinity, which a boolean mask cannot represent.
    """
    demand_tensor("mask", mask, "floating point")
    hides = mask == float("-inf")
    others = mask[~hides & (mask != 0)]
    if others.numel():
        raise ValueError(f"mask must contain only 0 and -inf to become a boolean mask, got {others[0].item():g}")
    return _convert_polarity(hides, "hide", polarity)


def _convert_polarity(mask: Tensor, given: Polarity, wanted: Polarity) -> Tensor:
    """Convert a mask from the polarity ``given`` to the polarity ``wanted``."""
    _demand_polarity(wanted)
    return mask if given == wanted else ~mask


def _demand_polarity(polarity: str) -> None:
    if polarity not in ("hide", "keep"):
        raise ValueError(f"polarity must be 'hide' (true hides) or 'keep' (true keeps), got {polarity!r}")


def _demand_lengths(name: str, lengths: Tensor, keys: int) -> Tensor:
    """Check the lengths of sequences, and return the lengths as int64.

    In int64, differences of lengths do not wrap around, as they could in a narrow or unsigned dtype.

    Shape: ``lengths`` (batch).
    """
    demand_tensor(name, lengths, "whole numbers")
    demand_shapes(**{name: (lengths, "batch")})
    lengths = lengths.long()
    # The lengths are checked only on the CPU: reading them from another device would make every call wait for that
    # device. They are not checked under a compiler, which cannot read the values of tensors.
    if lengths.device.type == "cpu" and not torch.compiler.is_compiling() and len(lengths):
        fewest, most = (int(end) for end in lengths.aminmax())
        if fewest < 0 or most > keys:
            raise ValueError(f"{name} must be from 0 to {keys}, the number of keys, got {fewest} to {most}")
    return lengths


def demand_positions(keys: int, *, causal: str | None, window: int | None, key_lengths: Tensor | None) -> None:
    """Check the arguments ``causal``, ``window`` and ``key_lengths`` of ``positional``.

    Raises: TypeError, ValueError where an argument is invalid.
    """
    if causal is not None and not (isinstance(causal, str) and causal in CORNERS):
        raise ValueError(f"causal must be {' or '.join(map(repr, CORNERS))}, or None, got {describe_argument(causal)}")
    if window is not None:
        demand_whole_numbers(0, window=window)
    if key_lengths is not None:
        _demand_lengths("key_lengths", key_lengths, keys)


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
    """Return the keep mask and the additive mask that positions of queries and keys determine; each may be None.

    The keep mask applies ``causal``, ``window`` and ``key_lengths``; it is None if these three are None. The additive
    mask applies ``slopes``; it is None if ``slopes`` is None.

    ``causal`` is "top_left", "bottom_right" or None. ``window`` is the largest distance at which a query sees a
    key. ``slopes`` are the ALiBi slopes, one for each head. With "top_left" the first query is at the position of the
    first key. With "bottom_right" or None the last query is at the position of the last key of its sequence.

    This function does not check its arguments, which saves time in every call of a kernel. ``demand_positions`` checks
    ``causal``, ``window`` and ``key_lengths``.

    Shape: key_lengths (batch); returns a keep mask (batch or 1, 1, queries or 1, keys) and an additive mask
    (batch or 1, heads, queries, keys).
    """
    key_positions = torch.arange(keys, device=device)
    ends = keys if key_lengths is None else key_lengths.long()[:, None, None, None]
    rows = torch.arange(queries, device=device)[None, None, :, None]
    distance = rows - key_positions if causal == "top_left" else rows + (ends - queries) - key_positions
    keep = None if key_lengths is None else key_positions < ends
    if causal is not None:
        keep = distance >= 0 if keep is None else keep & (distance >= 0)
    if window is not None:
        near = distance.abs() <= window
        keep = near if keep is None else keep & near
    if slopes is None:
        return keep, None
    # The product of slope and distance is computed in float32 or wider. bfloat16 would round a slope or a distance with
    # more than 8 significant bits. float16 would round a slope or a distance with more than 11 significant bits.
    wide = torch.promote_types(dtype, torch.float32)
    slope = torch.tensor(slopes, dtype=wide, device=device)[:, None, None]
    return keep, (-slope * distance.abs()).to(dtype)


def additive(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a keep mask to an additive mask: 0 where the keep mask is true, minus infinity where it is false.

    Raises: TypeError where the mask is not boolean, or the dtype is not floating point.
    """
    demand_tensor("keep", keep, "boolean")
    demand_dtype(dtype)
    return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill(~keep, float("-inf"))


def combined(first: Tensor | None, second: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Combine two masks, each of which is a keep mask, an additive mask or None.

    A key is visible in the result if it is visible in both masks. Additive values are summed. None hides no key.

    Raises: TypeError where a mask is neither boolean nor floating point, or ``dtype`` is not floating point.
    """
    for name, mask in (("first", first), ("second", second)):
        if mask is not None:
            demand_tensor(name, mask, "boolean", "floating point")
    demand_dtype(dtype)
    if first is None or second is None:
        return second if first is None else first
    if first.dtype == torch.bool and second.dtype == torch.bool:
        return first & second
    return _to_additive(first, dtype) + _to_additive(second, dtype)


def _to_additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return additive(mask, dtype) if mask.dtype == torch.bool else mask.to(dtype)


def reference_mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, *, num_heads: int, dtype: torch.dtype
) -> Tensor | None:
    """Combine the reference's two masks into one mask for kernels: a keep mask, or an additive mask.

    Shape: attn_mask (queries, keys) or (batch·heads, queries, keys); key_padding_mask (batch, keys);
    returns a mask broadcastable to (batch, heads, queries, keys).

    Raises: TypeError where a mask is neither boolean nor floating point; ValueError where a mask has another shape.
    """
    if attn_mask is not None:
        attn_mask = _to_keep_mask("attn_mask", attn_mask, {2: "queries keys", 3: "batch·heads queries keys"})
        if attn_mask.dim() == 3:
            demand_heads(num_heads, {"batch·heads": attn_mask.shape[0]})
            batch = attn_mask.shape[0] // num_heads
            attn_mask = torch.unflatten(attn_mask, 0, (batch, num_heads))  # (batch, heads, queries, keys)
    if key_padding_mask is not None:
        key_padding_mask = _to_keep_mask("key_padding_mask", key_padding_mask, {2: "batch keys"})
        key_padding_mask = key_padding_mask[:, None, None, :]  # (batch, 1, 1, keys)
    return combined(attn_mask, key_padding_mask, dtype)


def _to_keep_mask(name: str, mask: Tensor, shapes: Mapping[int, str]) -> Tensor:
    """Convert a boolean mask of the reference to a keep mask; return an additive mask unchanged.

    ``shapes`` maps each allowed number of dimensions to the allowed shape.
    """
    demand_tensor(name, mask, "boolean", "floating point")
    if mask.dim() not in shapes:  # call demand_shapes only for a wrong mask: it parses strings, which is slow
        demand_shapes(**{name: (mask, " | ".join(shapes.values()))})
    return ~mask if mask.dtype == torch.bool else mask


def extended(mask: Tensor | None, columns: int) -> Tensor | None:
    """Append ``columns`` visible keys to a mask, for the keys that bias_k and add_zero_attn add.

    Raises: TypeError where ``mask`` is neither boolean nor floating point; TypeError, ValueError where ``columns`` is
    not an integer of at least 0.
    """
    demand_whole_numbers(0, columns=columns)
    if mask is not None:
        demand_tensor("mask", mask, "boolean", "floating point")
    if mask is None or columns == 0:
        return mask
    visible = True if mask.dtype == torch.bool else 0.0
    return torch.nn.functional.pad(mask, (0, columns), value=visible)


def softmax_over_visible(logits: Tensor) -> Tensor:
    """Return the softmax over the last dimension; fully masked rows are zero, with zero gradients."""
    empty = (logits == float("-inf")).all(dim=-1, keepdim=True)
    return torch.softmax(logits.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
