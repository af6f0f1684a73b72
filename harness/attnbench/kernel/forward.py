"""A base class with the forward signature of ``nn.MultiheadAttention``; subclasses define the attention."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from attnbench.interface import reference_arguments
from attnbench.masks import extended, reference_mask

__all__ = ["ReferenceForward"]


class ReferenceForward(nn.Module):
    """A module whose forward takes the reference's arguments, handles layouts and masks, and calls ``attention``."""

    def __init__(self, reference: nn.MultiheadAttention) -> None:
        super().__init__()
        arguments = reference_arguments(reference)
        self.embed_dim: int = arguments["embed_dim"]
        self.num_heads: int = arguments["num_heads"]
        self.kdim: int = arguments["kdim"]
        self.vdim: int = arguments["vdim"]
        self.dropout: float = arguments["dropout"]
        self.add_zero_attn: bool = arguments["add_zero_attn"]
        self.batch_first: bool = arguments["batch_first"]
        self.head_dim = self.embed_dim // self.num_heads
        # Number of appended keys: the learned key (bias_k) and the zero key (add_zero_attn).
        self.columns = arguments["add_bias_kv"] + self.add_zero_attn
        self.adopt(dict(reference.named_parameters()))
        self.train(reference.training)

    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        """Register copies of the reference's parameters; ``parameters`` has them by their names in the reference."""
        raise NotImplementedError

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output (batch, queries, embed_dim), and attention weights (batch, heads, queries, keys) or None.

        ``mask`` and the attention weights include the extra key columns (bias_k, add_zero_attn). ``mask`` alone
        determines the hidden keys. ``is_causal`` only states that ``mask``, which is then given, is causal.

        Shape: query (batch, queries, embed_dim), key (batch, keys, kdim), value (batch, keys, vdim), mask
        broadcastable to (batch, heads, queries, keys).
        """
        raise NotImplementedError

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,  # noqa: FBT001, FBT002  # the reference's signature
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,  # noqa: FBT001, FBT002
        is_causal: bool = False,  # noqa: FBT001, FBT002
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention with the signature of the reference.

        Shape: query, key, value and output are (batch, length, width) if batch_first, else (length, batch, width);
        unbatched (length, width). The width is embed_dim (query, output), kdim (key) or vdim (value).
        """
        if query.dim() not in (2, 3) or not query.dim() == key.dim() == value.dim():
            dims = f"{query.dim()}, {key.dim()} and {value.dim()}"
            raise ValueError(f"query, key and value must all have 3 dimensions, or 2 without a batch, got {dims}")
        batched = query.dim() == 3
        swapped = batched and not self.batch_first
        if not batched:
            query, key, value = _map_tokens(lambda tokens: tokens[None], query, key, value)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif swapped:
            query, key, value = _map_tokens(lambda tokens: tokens.transpose(0, 1), query, key, value)
        self._check(query, key, value, attn_mask=attn_mask, key_padding_mask=key_padding_mask)

        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True needs attn_mask: pass the causal mask as attn_mask")
        if attn_mask is not None and attn_mask.requires_grad and torch.is_grad_enabled():
            # attn_mask needs a gradient, so the causal flag is cleared. A kernel that used the flag in place of
            # attn_mask would give attn_mask no gradient.
            is_causal = False
        output, weights = self.under_masks(
            query,
            key,
            value,
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            is_causal=is_causal,
            need_weights=need_weights,
        )

        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)  # (batch, queries, keys)
        if not batched:
            return output[0], None if weights is None else weights[0]
        return (output.transpose(0, 1) if swapped else output), weights

    def under_masks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Combine the reference's two masks and call ``attention``.

        A subclass may override this method to handle the masks in another way. Tokens are batch first and have been
        checked. If the caller passed one tensor as several of query, key and value, the method also gets one tensor.

        Shape: attn_mask (queries, keys) or (batch·heads, queries, keys), key_padding_mask (batch, keys).
        """
        # The caller's ``is_causal`` says that attn_mask is causal. ``attention`` gets the flag only if there is no
        # key_padding_mask and no key is appended: the combined mask is then attn_mask.
        causal_only = is_causal and key_padding_mask is None and self.columns == 0
        mask = reference_mask(attn_mask, key_padding_mask, num_heads=self.num_heads, dtype=query.dtype)
        mask = extended(mask, self.columns)
        return self.attention(query, key, value, mask=mask, is_causal=causal_only, need_weights=need_weights)

    def _check(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
    ) -> None:
        """Refuse shapes that would be broadcast and would give a wrong output, and masks of a wrong dtype.

        All tensors must be in batch-first order.
        """
        (batch, queries), keys = query.shape[:2], key.shape[1]
        _demand_shape("query", query, (batch, queries, self.embed_dim))
        _demand_shape("key", key, (batch, keys, self.kdim))
        _demand_shape("value", value, (batch, keys, self.vdim))
        if attn_mask is not None:
            _demand_mask("attn_mask", attn_mask, (queries, keys), (batch * self.num_heads, queries, keys))
        if key_padding_mask is not None:
            _demand_mask("key_padding_mask", key_padding_mask, (batch, keys))


def _map_tokens(
    change: Callable[[Tensor], Tensor], query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply ``change`` to query, key and value; a tensor that is passed as several arguments is changed once."""
    changed = change(query)
    changed_key = changed if key is query else change(key)
    if value is query:
        return changed, changed_key, changed
    return changed, changed_key, changed_key if value is key else change(value)


def _demand_shape(name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> None:
    if tuple(tensor.shape) not in shapes:
        wanted = " or ".join(str(shape) for shape in shapes)
        raise ValueError(f"{name} must have shape {wanted} in batch-first order, got {tuple(tensor.shape)}")


def _demand_mask(name: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    _demand_shape(name, mask, *shapes)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{name} must be boolean (true hides) or floating point (added to logits), got {mask.dtype}")
