"""One matrix product for queries, keys and values, where they are projected from one tensor.

    [Q K V] = X [W_q; W_k; W_v]ᵀ + [b_q b_k b_v]

in_proj_weight holds the three weights one above another already; what is fused is the product. A tensor that is two of
the three is projected by the two parts of the weight that stand together; different tensors, and weights of different
widths, are projected one by one. Attention is ``scaled_dot_product_attention``, which returns no weights.

Self-attention under no mask goes a shorter way: up to some hundred tokens, asking what else there is to do takes longer
than all that tells it from the reference's own fused path.

Shape: X (batch, length, embed_dim), in_proj_weight (3·embed_dim, embed_dim).
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html, in_proj_weight;
Shoeybi et al., Megatron-LM, 2019, https://arxiv.org/abs/1909.08053, section 3.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from attnbench.cases import Case
from attnbench.interface import Implementation, Refusal
from attnbench.kernel import HeadSplitAttention

__all__ = ["FUSED_PROJECTION", "FusedProjectionAttention"]

NO_WEIGHTS = "scaled_dot_product_attention returns no weights"


class FusedProjectionAttention(HeadSplitAttention):
    """Multi-head attention with as few products for its projections as there are tensors to project."""

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
        """Attention as the reference computes it."""
        masked = key_padding_mask is not None or attn_mask is not None or is_causal
        if query is key is value and not masked and not need_weights and self._takes(query):
            return self._of_itself(query), None
        return super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )

    def _takes(self, tokens: Tensor) -> bool:
        """Whether tokens are batch first and of the width of one input projection, and no column is appended."""
        fits = tokens.dim() == 3 and self.batch_first and tokens.shape[-1] == self.embed_dim
        return fits and self.in_proj_weight is not None and self.columns == 0

    def _of_itself(self, tokens: Tensor) -> Tensor:
        """Attention of tokens among themselves, without a mask. Shape: tokens (batch, length, embed_dim)."""
        assert self.in_proj_weight is not None
        features = linear(tokens, self.in_proj_weight, self.in_proj_bias)  # (batch, length, 3 · embed_dim)
        heads = torch.unflatten(features, -1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind()  # each (batch, heads, length, head_dim)
        return self.merge(scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0))

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head: (batch, heads, length, head_dim)."""
        if self.in_proj_weight is not None:
            if query is key and key is value:
                q, k, v = self._together(query, 0, 3)
                return q, k, v
            if key is value:
                k, v = self._together(key, 1, 3)
                return self._together(query, 0, 1)[0], k, v
            if query is key:
                q, k = self._together(query, 0, 2)
                return q, k, self._together(value, 2, 3)[0]
        return super().project(query, key, value)

    def _together(self, tokens: Tensor, first: int, end: int) -> list[Tensor]:
        """Some of the projections, of the three in their order, of the same tokens, with their heads split."""
        assert self.in_proj_weight is not None
        rows = slice(first * self.embed_dim, end * self.embed_dim)
        bias = None if self.in_proj_bias is None else self.in_proj_bias[rows]
        features = linear(tokens, self.in_proj_weight[rows], bias)  # (batch, length, parts · embed_dim)
        return [self.split(part) for part in features.chunk(end - first, dim=-1)]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attention by whichever kernel torch chooses."""
        if need_weights:
            raise Refusal(NO_WEIGHTS)
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(q.dtype)  # under autocast q is narrower than the query that the mask was made for
        mask = None if is_causal else mask
        dropout_p = self.dropout if self.training else 0.0
        return scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal), None


class FusedProjection(Implementation):
    """Multi-head attention with one input projection."""

    name = "fused_projection"
    source = "https://arxiv.org/abs/1909.08053"

    def unsupported(self, case: Case) -> str | None:
        """Weights."""
        return NO_WEIGHTS if case.problem.need_weights else None

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Module with the reference's weights."""
        return FusedProjectionAttention(reference)


FUSED_PROJECTION = FusedProjection()
