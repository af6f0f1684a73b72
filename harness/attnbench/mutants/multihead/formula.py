"""Correct multi-head attention with a method for each step; a mutant overrides one of the methods."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.kernel import HeadSplitAttention
from attnbench.masks import additive, softmax_over_visible

__all__ = ["Arguments", "Formula", "Result"]

# Arguments of a call, by their names in torch.nn.MultiheadAttention.forward.
Arguments = dict[str, Any]
Result = tuple[Tensor, Tensor | None]


class Formula(HeadSplitAttention):
    """Multi-head attention; each step is a method that a subclass can override.

    The steps in order: ``read_arguments``, ``project``, ``extend``, ``score``, ``apply_mask``,
    ``normalise``, ``apply_dropout``, ``sum_values``, ``return_weights``, ``merge``,
    ``return_result``. Arguments named ``shares`` are attention weights before dropout.

    Shape: logits and weights (batch, heads, queries, keys), k and v (batch, heads, keys, head_dim).
    """

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
    ) -> Result:
        """Run all steps, from ``read_arguments`` to ``return_result``."""
        given = {
            "query": query,
            "key": key,
            "value": value,
            "key_padding_mask": key_padding_mask,
            "need_weights": need_weights,
            "attn_mask": attn_mask,
            "average_attn_weights": average_attn_weights,
            "is_causal": is_causal,
        }
        output, weights = super().forward(**self.read_arguments(given))
        return self.return_result(output, weights)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> Result:
        """Compute softmax(q kᵀ / √head_dim + mask) v, with dropout on the attention weights."""
        del is_causal
        shares = self.normalise(self.apply_mask(self.score(q, k), mask))
        weights = self.apply_dropout(shares)
        return self.sum_values(weights, v), self.return_weights(weights).to(v.dtype) if need_weights else None

    def read_arguments(self, given: Arguments) -> Arguments:
        """Return the arguments that the later steps use; a mutant may return changed arguments."""
        return given

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """Compute the logits: q · kᵀ / √head_dim."""
        return (q / math.sqrt(self.head_dim)) @ k.mT

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Apply a boolean mask (true = keep) or an additive mask to the logits."""
        if mask is None:
            return logits
        return logits + (additive(mask, logits.dtype) if mask.dtype == torch.bool else mask.to(logits.dtype))

    def normalise(self, logits: Tensor) -> Tensor:
        """Compute the attention weights before dropout: softmax over the visible keys, 0 in a fully masked row."""
        return softmax_over_visible(logits)

    def apply_dropout(self, shares: Tensor) -> Tensor:
        """Apply dropout to the attention weights, if the module is in training mode."""
        return torch.dropout(shares, self.dropout, train=self.training)

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        """Compute the weighted sum of the values."""
        return weights.to(v.dtype) @ v

    def return_weights(self, weights: Tensor) -> Tensor:
        """Return the attention weights that the call returns if ``need_weights`` is true."""
        return weights

    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        """Return what ``forward`` returns: the output, and the attention weights or None."""
        return output, weights
