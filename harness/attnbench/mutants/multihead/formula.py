"""The right attention, one step a method; a mutant replaces one of them."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.kernel import HeadSplitAttention
from attnbench.masks import additive, softmax_over_visible

__all__ = ["Arguments", "Formula", "Result"]

# What a call was given, by the names of the reference's forward.
Arguments = dict[str, Any]
Result = tuple[Tensor, Tensor | None]


class Formula(HeadSplitAttention):
    """Attention spelled out: each step of it can be replaced alone.

    In order: ``receive``, ``project``, ``extend``, ``score``, ``hide``, ``normalise``, ``drop``, ``total``, ``told``,
    ``merge``, ``hand_over``.

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
        """Attention between ``receive`` and ``hand_over``."""
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
        output, weights = super().forward(**self.receive(given))
        return self.hand_over(output, weights)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> Result:
        """softmax(q kᵀ / √head_dim + mask) v, with dropout on the weights."""
        del is_causal
        shares = self.normalise(self.hide(self.score(q, k), mask))
        weights = self.drop(shares)
        return self.total(weights, v), self.told(weights).to(v.dtype) if need_weights else None

    def receive(self, given: Arguments) -> Arguments:
        """The call's arguments as they are used."""
        return given

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """Logits."""
        return (q / math.sqrt(self.head_dim)) @ k.mT

    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Logits under the mask: boolean with true = keep, or additive."""
        if mask is None:
            return logits
        return logits + (additive(mask, logits.dtype) if mask.dtype == torch.bool else mask.to(logits.dtype))

    def normalise(self, logits: Tensor) -> Tensor:
        """Shares of each key before dropout."""
        return softmax_over_visible(logits)

    def drop(self, shares: Tensor) -> Tensor:
        """Weights: shares after dropout."""
        return torch.dropout(shares, self.dropout, train=self.training)

    def total(self, weights: Tensor, v: Tensor) -> Tensor:
        """Weighted sum of the values."""
        return weights.to(v.dtype) @ v

    def told(self, weights: Tensor) -> Tensor:
        """Weights that are returned where they are asked for."""
        return weights

    def hand_over(self, output: Tensor, weights: Tensor | None) -> Result:
        """What the call returns."""
        return output, weights
