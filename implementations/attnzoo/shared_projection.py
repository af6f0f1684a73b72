"""One matrix product for those of queries, keys and values that are projected from one tensor.

    [Q K V] = X [W_q; W_k; W_v]ᵀ + [b_q b_k b_v]

in_proj_weight holds the three weights one above another already; what is fused is the product. A tensor that is two of
the three is projected by the two parts of the weight that stand together; different tensors, and weights of different
widths, are projected one by one. Attention is ``scaled_dot_product_attention``, which returns no weights.

Shape: X (batch, length, embed_dim), in_proj_weight (3·embed_dim, embed_dim).
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html, in_proj_weight;
Shoeybi et al., Megatron-LM, 2019, https://arxiv.org/abs/1909.08053, section 3.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from attnbench.interface import Refusal
from attnbench.kernel import HeadSplitAttention

__all__ = ["NO_WEIGHTS", "SharedProjectionAttention"]

NO_WEIGHTS = "scaled_dot_product_attention returns no weights"


class SharedProjectionAttention(HeadSplitAttention):
    """Multi-head attention with as few products for its projections as there are tensors to project.

    Self-attention under no mask but padding may go a shorter way, ``of_itself``: with few tokens, asking what else
    there is to do takes longer than all that tells one implementation from the next.
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
    ) -> tuple[Tensor, Tensor | None]:
        """Attention as the reference computes it."""
        plain = query is key is value and attn_mask is None and not is_causal and not need_weights
        if plain and self._takes(query):
            output = self.of_itself(query, key_padding_mask)
            if output is not None:
                return output, None
        return super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )

    def of_itself(self, tokens: Tensor, key_padding_mask: Tensor | None) -> Tensor | None:  # noqa: ARG002
        """Attention of tokens among themselves, or None where there is no shorter way.

        Nothing has been asked of the mask yet, neither its shape nor its dtype; no column is appended.

        Shape: tokens (batch, length, embed_dim).
        """
        return None

    def _takes(self, tokens: Tensor) -> bool:
        """Whether tokens are batch first and of the width of one input projection, and no column is appended."""
        fits = tokens.dim() == 3 and self.batch_first and tokens.shape[2] == self.embed_dim
        return fits and self.columns == 0 and self.in_proj_weight is not None

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head: (batch, heads, length, head_dim)."""
        if self.in_proj_weight is not None:
            if query is key and key is value:
                q, k, v = self.together(query, 0, 3).unbind()
                return q, k, v
            if key is value:
                k, v = self.together(key, 1, 3).unbind()
                return self.together(query, 0, 1).squeeze(0), k, v
            if query is key:
                q, k = self.together(query, 0, 2).unbind()
                return q, k, self.together(value, 2, 3).squeeze(0)
        return super().project(query, key, value)

    def together(self, tokens: Tensor, first: int, end: int) -> Tensor:
        """Some of the projections, of the three in their order, of the same tokens, with their heads split.

        Shape: tokens (batch, length, embed_dim) to (parts, batch, heads, length, head_dim).
        """
        weight, bias, parts = self.in_proj_weight, self.in_proj_bias, end - first
        assert weight is not None
        # A slice of all, too, would have a gradient of its own to be copied from.
        if parts < 3:
            rows = slice(first * self.embed_dim, end * self.embed_dim)
            weight, bias = weight[rows], None if bias is None else bias[rows]
        features = linear(tokens, weight, bias)  # (batch, length, parts · embed_dim)
        return torch.unflatten(features, -1, (parts, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)

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
