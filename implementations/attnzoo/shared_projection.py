"""Queries, keys and values that are projected from the same tensor share one matrix product.

    [Q K V] = X [W_q; W_k; W_v]ᵀ + [b_q b_k b_v]

The parameter in_proj_weight already stacks W_q, W_k and W_v. If only query and key, or only key and
value, are the same tensor, two adjacent parts of in_proj_weight project that tensor. Different
tensors are projected one by one. If kdim or vdim differs from embed_dim, query, key and value are
projected one by one, too. Attention is ``scaled_dot_product_attention``, which returns no attention
weights.

Shape: X (batch, length, embed_dim), in_proj_weight (3·embed_dim, embed_dim).
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html, in_proj_weight;
Shoeybi et al., Megatron-LM, 2019, https://arxiv.org/abs/1909.08053, section 3.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnbench.interface import Refusal
from attnbench.kernel import HeadSplitAttention
from attnbench.refusals import LacksWeights
from attnzoo.fused_attention import attend_fused

__all__ = ["SharedProjectionAttention"]


class SharedProjectionAttention(HeadSplitAttention):
    """Multi-head attention in which projections of one tensor share a product.

    The projections of query, key and value share one product if all three are one tensor. Query and key, or key and
    value, also share a product if they are one tensor. Query and value alone share none.

    For self-attention with no mask, or with only a padding mask, ``try_shortcut`` may skip the argument checks of the
    general path. With few tokens, the checks take more time than the difference between two implementations.
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
        """Return output and attention weights, as ``torch.nn.MultiheadAttention`` does."""
        plain = query is key is value and attn_mask is None and not is_causal and not need_weights
        if plain and self._can_take_shortcut(query):
            output = self.try_shortcut(query, key_padding_mask)
            if output is not None:
                return output, None
        return super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )

    def try_shortcut(self, tokens: Tensor, key_padding_mask: Tensor | None) -> Tensor | None:  # noqa: ARG002
        """Compute self-attention by a shortcut that a subclass defines; return None if there is no shortcut.

        The caller has not checked the shape and dtype of ``key_padding_mask``. The method is called
        only if the module appends no extra keys (bias_k, the zero key).

        Shape: tokens (batch, length, embed_dim).
        """
        return None

    def _can_take_shortcut(self, tokens: Tensor) -> bool:
        """Whether tokens are (batch, length, embed_dim), the parameters are packed, and no extra key is appended."""
        fits = tokens.dim() == 3 and self.batch_first and tokens.shape[2] == self.embed_dim
        return fits and self.columns == 0 and self.in_proj_weight is not None

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project query, key and value, and split the results into heads.

        Shape: returns three tensors (batch, heads, length, head_dim).
        """
        if self.in_proj_weight is not None:
            if query is key and key is value:
                q, k, v = self.project_parts(query, 0, 3).unbind()
                return q, k, v
            if key is value:
                k, v = self.project_parts(key, 1, 3).unbind()
                return self.project_parts(query, 0, 1).squeeze(0), k, v
            if query is key:
                q, k = self.project_parts(query, 0, 2).unbind()
                return q, k, self.project_parts(value, 2, 3).squeeze(0)
        return super().project(query, key, value)

    def project_parts(self, tokens: Tensor, first: int, end: int) -> Tensor:
        """Project tokens by the parts ``range(first, end)`` of in_proj_weight, and split the heads.

        Part 0 gives queries, part 1 keys, part 2 values.

        Shape: tokens (batch, length, embed_dim) to (parts, batch, heads, length, head_dim).
        """
        weight, bias, parts = self.in_proj_weight, self.in_proj_bias, end - first
        assert weight is not None
        # A product with all three parts needs no slice of the weight. Backward would copy the
        # gradient of a slice, even if the slice had all rows.
        if parts < 3:
            rows = slice(first * self.embed_dim, end * self.embed_dim)
            weight, bias = weight[rows], None if bias is None else bias[rows]
        features = linear(tokens, weight, bias)  # (batch, length, parts · embed_dim)
        return torch.unflatten(features, -1, (parts, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention by the kernel that torch chooses."""
        if need_weights:
            raise Refusal(LacksWeights())
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(q.dtype)  # under autocast the mask has the dtype of query, and q has a narrower dtype
        mask = None if is_causal else mask
        dropout_p = self.dropout if self.training else 0.0
        return attend_fused(q, k, v, mask, dropout_p=dropout_p, is_causal=is_causal), None
