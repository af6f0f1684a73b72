"""Correct attention on split heads with a method for each step; a mutant overrides one of the methods."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.masks import softmax_over_visible

__all__ = ["CoreFormula"]


class CoreFormula(nn.Module):
    """Attention on split heads; each step is a method that a subclass can override.

    The steps in order: ``repeat_key_heads``, ``score``, ``apply_softcap``, ``add_bias``,
    ``apply_mask``, ``normalise``, ``sum_values``. ``apply_softcap`` runs directly before the step
    that ``cap_at`` names: ``add_bias`` (correct), ``apply_mask`` or ``normalise``.

    Shape: logits and weights (batch, heads, queries, keys).
    """

    cap_at = "add_bias"

    def __init__(self, _: Any) -> None:
        super().__init__()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        bias: Tensor | None = None,
        key_lengths: Tensor | None = None,
        causal: str | None = None,
        window: int | None = None,
        alibi_slopes: Sequence[float] | None = None,
        softcap: float | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Compute the output. Shape: (batch, heads, queries, head_dim_v)."""
        key, value = (self.repeat_key_heads(tensor, query.shape[1]) for tensor in (key, value))
        logits = self.score(query, key, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        distance = self.compute_distances(logits, causal, key_lengths)
        if softcap is not None and self.cap_at == "add_bias":
            logits = self.apply_softcap(logits, softcap)
        logits = self.add_bias(logits, bias, alibi_slopes, distance)
        if softcap is not None and self.cap_at == "apply_mask":
            logits = self.apply_softcap(logits, softcap)
        keep = self.make_keep_mask(logits, distance, causal=causal, window=window, key_lengths=key_lengths)
        logits = self.apply_mask(logits, keep)
        if softcap is not None and self.cap_at == "normalise":
            logits = self.apply_softcap(logits, softcap)
        return self.sum_values(self.normalise(logits), value)

    def repeat_key_heads(self, tensor: Tensor, heads: int) -> Tensor:
        """Repeat each head of the keys or values until there are as many heads as query heads."""
        return tensor if heads == tensor.shape[1] else tensor.repeat_interleave(heads // tensor.shape[1], dim=1)

    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """Compute the logits: scale · query · keyᵀ."""
        return (query * scale) @ key.mT

    def apply_softcap(self, logits: Tensor, softcap: float) -> Tensor:
        """Limit the logits smoothly to between −softcap and softcap."""
        return softcap * torch.tanh(logits / softcap)

    def read_lengths(self, logits: Tensor, key_lengths: Tensor | None) -> Tensor:
        """Return the number of keys of each sequence. Shape: (batch, 1, 1, 1)."""
        if key_lengths is None:
            key_lengths = torch.full((logits.shape[0],), logits.shape[-1], device=logits.device)
        return key_lengths[:, None, None, None]

    def compute_distances(self, logits: Tensor, causal: str | None, key_lengths: Tensor | None) -> Tensor:
        """Compute query position minus key position. Shape: (batch, 1, queries, keys)."""
        queries, keys = logits.shape[-2:]
        rows, columns = (torch.arange(n, device=logits.device) for n in (queries, keys))
        ends = self.read_lengths(logits, key_lengths)
        first = torch.zeros_like(ends) if causal == "top_left" else ends - queries
        return rows[:, None] + first - columns

    def add_bias(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, distance: Tensor) -> Tensor:
        """Add the bias and the ALiBi term to the logits, each if it is given."""
        if bias is not None:
            logits = logits + bias
        return logits if slopes is None else logits + self.compute_alibi(logits, slopes, distance)

    def compute_alibi(self, logits: Tensor, slopes: Sequence[float], distance: Tensor) -> Tensor:
        """Compute the term that ALiBi adds to the logits."""
        wide = torch.promote_types(logits.dtype, torch.float32)
        slope = torch.tensor(slopes, dtype=wide, device=logits.device)[:, None, None]
        return (-slope * distance.abs()).to(logits.dtype)

    def make_keep_mask(
        self, logits: Tensor, distance: Tensor, *, causal: str | None, window: int | None, key_lengths: Tensor | None
    ) -> Tensor:
        """Make the mask that is true where a query sees a key. Shape: (batch, 1, queries, keys)."""
        keep = torch.arange(logits.shape[-1], device=logits.device) < self.read_lengths(logits, key_lengths)
        if causal is not None:
            keep = keep & (distance >= 0)
        return keep if window is None else keep & self.is_in_window(distance, window)

    def is_in_window(self, distance: Tensor, window: int) -> Tensor:
        """Return a mask, true where the key is in the query's window. Shape: as ``distance``."""
        return distance.abs() <= window

    def apply_mask(self, logits: Tensor, keep: Tensor) -> Tensor:
        """Set the logits of hidden keys to minus infinity."""
        return logits.masked_fill(~keep, -math.inf)

    def normalise(self, logits: Tensor) -> Tensor:
        """Compute the attention weights: softmax over the visible keys, 0 in a fully masked row."""
        return softmax_over_visible(logits)

    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        """Compute the weighted sum of the values."""
        return weights @ value
