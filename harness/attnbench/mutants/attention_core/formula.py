"""The right attention on split heads, one step a method; a mutant replaces one of them."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.masks import softmax_over_visible

__all__ = ["CoreFormula"]


class CoreFormula(nn.Module):
    """Attention on split heads spelled out: each step of it can be replaced alone.

    In order: ``share``, ``score``, ``cap``, ``add``, ``hide``, ``normalise``, ``total``. ``cap_at`` says before which
    of the steps ``add``, ``hide`` and ``normalise`` the soft-cap comes.

    Shape: logits and weights (batch, heads, queries, keys).
    """

    cap_at = "add"

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
        """Output (batch, heads, queries, head_dim_v)."""
        key, value = (self.share(tensor, query.shape[1]) for tensor in (key, value))
        logits = self.score(query, key, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        apart = self.distances(logits, causal, key_lengths)
        if softcap is not None and self.cap_at == "add":
            logits = self.cap(logits, softcap)
        logits = self.add(logits, bias, alibi_slopes, apart)
        if softcap is not None and self.cap_at == "hide":
            logits = self.cap(logits, softcap)
        keep = self.kept(logits, apart, causal=causal, window=window, key_lengths=key_lengths)
        logits = self.hide(logits, keep)
        if softcap is not None and self.cap_at == "normalise":
            logits = self.cap(logits, softcap)
        return self.total(self.normalise(logits), value)

    def share(self, tensor: Tensor, heads: int) -> Tensor:
        """Keys or values of each head of queries."""
        return tensor if heads == tensor.shape[1] else tensor.repeat_interleave(heads // tensor.shape[1], dim=1)

    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """Scaled logits."""
        return (query * scale) @ key.mT

    def cap(self, logits: Tensor, softcap: float) -> Tensor:
        """Logits bent to stay between −softcap and softcap."""
        return softcap * torch.tanh(logits / softcap)

    def lengths(self, logits: Tensor, key_lengths: Tensor | None) -> Tensor:
        """Keys of each sequence. Shape: (batch, 1, 1, 1)."""
        if key_lengths is None:
            key_lengths = torch.full((logits.shape[0],), logits.shape[-1], device=logits.device)
        return key_lengths[:, None, None, None]

    def distances(self, logits: Tensor, causal: str | None, key_lengths: Tensor | None) -> Tensor:
        """Position of each query less that of each key. Shape: (batch, 1, queries, keys)."""
        queries, keys = logits.shape[-2:]
        rows, columns = (torch.arange(n, device=logits.device) for n in (queries, keys))
        ends = self.lengths(logits, key_lengths)
        first = torch.zeros_like(ends) if causal == "top_left" else ends - queries
        return rows[:, None] + first - columns

    def add(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, apart: Tensor) -> Tensor:
        """Logits with the bias, or with ALiBi."""
        if bias is not None:
            logits = logits + bias
        return logits if slopes is None else logits + self.alibi(logits, slopes, apart)

    def alibi(self, logits: Tensor, slopes: Sequence[float], apart: Tensor) -> Tensor:
        """What ALiBi adds."""
        wide = torch.promote_types(logits.dtype, torch.float32)
        slope = torch.tensor(slopes, dtype=wide, device=logits.device)[:, None, None]
        return (-slope * apart.abs()).to(logits.dtype)

    def kept(
        self, logits: Tensor, apart: Tensor, *, causal: str | None, window: int | None, key_lengths: Tensor | None
    ) -> Tensor:
        """True where a query sees a key. Shape: (batch, 1, queries, keys)."""
        keep = torch.arange(logits.shape[-1], device=logits.device) < self.lengths(logits, key_lengths)
        if causal is not None:
            keep = keep & (apart >= 0)
        return keep if window is None else keep & self.near(apart, window)

    def near(self, apart: Tensor, window: int) -> Tensor:
        """True where a key is within the window of a query."""
        return apart.abs() <= window

    def hide(self, logits: Tensor, keep: Tensor) -> Tensor:
        """Logits, and minus infinity where a key is hidden."""
        return logits.masked_fill(~keep, -math.inf)

    def normalise(self, logits: Tensor) -> Tensor:
        """Weights."""
        return softmax_over_visible(logits)

    def total(self, weights: Tensor, value: Tensor) -> Tensor:
        """Weighted sum of the values."""
        return weights @ value
