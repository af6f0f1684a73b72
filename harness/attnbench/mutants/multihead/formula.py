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

    The steps in order: ``read_arguments``, ``read_padding``, ``project``, ``extend``, ``score``,
    ``apply_mask`` (``apply_boolean_mask`` or ``apply_float_mask``), ``normalise``,
    ``apply_dropout``, ``sum_values``, ``return_weights``, ``merge``, ``return_result``. Arguments
    named ``shares`` are attention weights before dropout.

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
        weights = self.apply_dropout(self.compute_shares(q, k, mask))
        return self.sum_values(weights, v), self.return_weights(weights).to(v.dtype) if need_weights else None

    def read_arguments(self, given: Arguments) -> Arguments:
        """Return the arguments that the later steps use; a mutant may return changed arguments."""
        return given

    def under_masks(
        self, query: Tensor, key: Tensor, value: Tensor, *, key_padding_mask: Tensor | None, **named: Any
    ) -> Result:
        """Combine the two masks, after ``read_padding``, and run the steps from ``project`` to ``merge``."""
        padding = None if key_padding_mask is None else self.read_padding(key_padding_mask)
        return super().under_masks(query, key, value, key_padding_mask=padding, **named)

    def read_padding(self, padding: Tensor) -> Tensor | None:
        """Return the key_padding_mask (batch, keys) that the later steps use."""
        return padding

    def compute_shares(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the attention weights before dropout, by ``score``, ``apply_mask`` and ``normalise``."""
        return self.normalise(self.apply_mask(self.score(q, k), mask))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """Compute the logits: q · kᵀ / √head_dim."""
        return (q / math.sqrt(self.head_dim)) @ k.mT

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Apply a boolean mask (true = keep) or an additive mask to the logits."""
        if mask is None:
            return logits
        return (self.apply_boolean_mask if mask.dtype == torch.bool else self.apply_float_mask)(logits, mask)

    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        """Set the logits of hidden keys to minus infinity; ``mask`` is true at visible keys."""
        return logits + additive(mask, logits.dtype)

    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        """Add an additive mask to the logits."""
        return logits + mask.to(logits.dtype)

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
