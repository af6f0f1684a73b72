"""A user's attention: a class with the interface of ``torch.nn.MultiheadAttention`` that does not use attnbench."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout


class MyAttention(nn.Module):
    """Multi-head attention by ``torch.einsum``, with the reference's names of arguments and parameters.

    The arguments kdim, vdim, add_bias_kv and add_zero_attn are missing, so cases that need them are refused.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the output and, with ``need_weights``, the attention weights.

        Boolean masks are true where a key is hidden; floating-point masks are added to the logits.

        Shape: (batch, length, embed_dim) if batch_first, else (length, batch, embed_dim); unbatched
        (length, embed_dim).
        """
        if is_causal and attn_mask is None:
            raise ValueError("is_causal only says that attn_mask is causal; pass attn_mask too")
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x[None] for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))

        self.check_shapes(query, key, value, attn_mask, key_padding_mask)
        q, k, v = (self.project(x, part) for part, x in enumerate((query, key, value)))
        logits = torch.einsum("bqhd,bkhd->bhqk", q / math.sqrt(q.shape[-1]), k)
        if attn_mask is not None:
            three = attn_mask.dim() == 3
            logits = hide(logits, attn_mask.reshape(logits.shape) if three else attn_mask)
        if key_padding_mask is not None:
            logits = hide(logits, key_padding_mask[:, None, None, :])
        # The weights of a fully masked row are 0; the softmax alone would give NaN.
        empty = (logits == float("-inf")).all(dim=-1, keepdim=True)
        weights = torch.softmax(logits.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
        weights = dropout(weights, self.dropout, self.training)
        output = self.out_proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))

        if average_attn_weights:
            weights = weights.mean(dim=1)
        if not batched:
            output, weights = output[0], weights[0]
        elif not self.batch_first:
            output = output.transpose(0, 1)
        return output, weights if need_weights else None

    def check_shapes(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> None:
        """Refuse shapes that would broadcast to a wrong result; all tensors are batch first here."""
        mask_shapes = {(query.shape[1], key.shape[1]), (len(query) * self.num_heads, query.shape[1], key.shape[1])}
        if not len(query) == len(key) == len(value) or key.shape[1] != value.shape[1]:
            raise ValueError("query, key and value must have the same batch size, and key and value the same length")
        if attn_mask is not None and attn_mask.shape not in mask_shapes:
            raise ValueError(f"attn_mask must have one of the shapes {mask_shapes}, got {tuple(attn_mask.shape)}")
        if key_padding_mask is not None and key_padding_mask.shape != key.shape[:2]:
            expected = tuple(key.shape[:2])
            raise ValueError(f"key_padding_mask must have shape {expected}, got {tuple(key_padding_mask.shape)}")

    def project(self, x: Tensor, part: int) -> Tensor:
        """Project to queries (part 0), keys (1) or values (2) of every head: (batch, length, heads, head_dim)."""
        heads = (self.num_heads, x.shape[-1] // self.num_heads)
        weight = self.in_proj_weight.chunk(3)[part].reshape(*heads, -1)  # (heads, head_dim, embed_dim)
        projected = torch.einsum("ble,hde->blhd", x, weight)
        if self.in_proj_bias is None:
            return projected
        return projected + self.in_proj_bias.chunk(3)[part].reshape(heads)


def hide(logits: Tensor, mask: Tensor) -> Tensor:
    """Set logits to minus infinity where a boolean mask is true, or add a floating-point mask."""
    if mask.dtype == torch.bool:
        return logits.masked_fill(mask, float("-inf"))
    if not mask.is_floating_point():
        raise TypeError(f"a mask must be boolean or floating point, got {mask.dtype}")
    return logits + mask
