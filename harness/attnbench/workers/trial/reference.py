"""The reference on the small problem, with parameters that make the attention weights differ."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnbench.workers.trial.problem import Sizes, draw

__all__ = ["CAUSAL", "UNMASKED", "Masks", "Reference"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Masks:
    """The reference's arguments for masks; true hides."""

    attn_mask: Tensor | None = None
    key_padding_mask: Tensor | None = None
    is_causal: bool = False


UNMASKED = Masks()
CAUSAL = Masks(
    attn_mask=torch.ones(Sizes.queries, Sizes.queries, dtype=torch.bool).triu(1),
    is_causal=True,
)


class Reference:
    """``torch.nn.MultiheadAttention`` in float32, and its results in float64."""

    def __init__(self, *, biased: bool) -> None:
        self.biased = biased
        sizes = (Sizes.embed_dim, Sizes.heads)
        self.module = nn.MultiheadAttention(*sizes, bias=biased, batch_first=True).eval()
        for seed, parameter in enumerate(self.module.parameters()):
            # The initial weights of the reference are so small that all keys get about the same weight.
            scale = 1.5 / Sizes.embed_dim**0.5 if parameter.dim() == 2 else 0.5
            parameter.copy_(scale * draw(*parameter.shape, seed=20 + seed))
        self._exact = nn.MultiheadAttention(*sizes, bias=biased, batch_first=True).double().eval()
        self._exact.load_state_dict(self.module.state_dict())

    def run(self, query: Tensor, context: Tensor, masks: Masks = UNMASKED) -> tuple[Tensor, Tensor]:
        """Return the output and the attention weights of each head; in fully masked rows they are NaN."""
        attn_mask, padding = (
            mask.double() if mask is not None and mask.is_floating_point() else mask
            for mask in (masks.attn_mask, masks.key_padding_mask)
        )
        query, context = query.double(), context.double()
        output, weights = self._exact(
            query, context, context, attn_mask=attn_mask, key_padding_mask=padding,
            average_attn_weights=False,
        )  # fmt: skip
        return output, weights

    def project_mean(self, tokens: Tensor) -> Tensor:
        """Return the output (batch, embed_dim) of a query that gives all keys the same weight."""
        values = self._exact.in_proj_weight.chunk(3)[2]
        bias = self._exact.in_proj_bias.chunk(3)[2] if self.biased else 0
        projected: Tensor = self._exact.out_proj(tokens.double().mean(1) @ values.T + bias)
        return projected
