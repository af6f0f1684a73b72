"""One matrix product for queries, keys and values if all three are projected from one tensor.

    [Q K V] = X [W_q; W_k; W_v]ᵀ + [b_q b_k b_v]

If only query and key, or only key and value, are the same tensor, two adjacent parts of
in_proj_weight project that tensor (``shared_projection``). Attention is
``scaled_dot_product_attention``, which returns no attention weights. Self-attention without a mask
skips argument checks (``try_shortcut``), and uses two products in place of the fused kernel where
these are faster (``by_size``).

Shape: X (batch, length, embed_dim), in_proj_weight (3·embed_dim, embed_dim).
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html, in_proj_weight;
Shoeybi et al., Megatron-LM, 2019, https://arxiv.org/abs/1909.08053, section 3.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies
from attnbench.refusals import LacksWeights, TypedRefusal
from attnzoo.by_size import attend_in_blocks, attend_storing_weights, stores_blocks, stores_weights
from attnzoo.shared_projection import SharedProjectionAttention

__all__ = ["FUSED_PROJECTION", "FusedProjectionAttention"]


class FusedProjectionAttention(SharedProjectionAttention):
    """Multi-head attention with as few operations as possible besides its matrix products."""

    def try_shortcut(self, tokens: Tensor, key_padding_mask: Tensor | None) -> Tensor | None:
        """Compute self-attention without a mask; return None if there is a padding mask."""
        if key_padding_mask is not None:
            return None
        batch, length, _ = tokens.shape
        dropout_p = self.dropout if self.training else 0.0
        if stores_blocks(batch * self.num_heads * length * length, tokens) and not dropout_p:
            return self._attend_in_blocks(tokens)
        heads = self.project_parts(tokens, 0, 3)
        if stores_weights(self.num_heads * length * length, heads) and batch == 1 and not dropout_p:
            q, k, v = heads.squeeze(1).unbind()
            return self.project_back(attend_storing_weights(q, k, v).flatten(1)).unsqueeze(0)
        q, k, v = heads.unbind()
        return self.merge(scaled_dot_product_attention(q, k, v, dropout_p=dropout_p))

    def _attend_in_blocks(self, tokens: Tensor) -> Tensor:
        """Compute self-attention without a mask in bfloat16, where the fused kernel is slow."""
        batch, length, _ = tokens.shape
        attended = attend_in_blocks(self._project_and_copy(tokens))
        return self.merge(attended.view(batch, self.num_heads, length, self.head_dim))

    def _project_and_copy(self, tokens: Tensor) -> Tensor:
        """Project tokens, and copy the result so that the rows of a head are adjacent.

        One copy takes less time than products of matrices whose rows are not adjacent.

        Shape: tokens (batch, length, embed_dim) to (3, batch · heads, length, head_dim).
        """
        assert self.in_proj_weight is not None
        features = linear(tokens, self.in_proj_weight)
        if self.in_proj_bias is not None:
            # In bfloat16, a product with a bias takes longer than a product and then an addition: a whole call takes
            # about 2 % longer with 8 sequences of 256 tokens.
            features += self.in_proj_bias
        heads = torch.unflatten(features, -1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        return heads.contiguous().flatten(1, 2)


class FusedProjection(Implementation):
    """Multi-head attention with one input projection for query, key and value."""

    name = "fused_projection"
    source = "https://arxiv.org/abs/1909.08053"
    policies = Policies(unordered_gradients=("cuda",))

    def unsupported(self, case: Case) -> TypedRefusal | None:
        """Return why a case that needs attention weights is refused, or None for other cases."""
        return LacksWeights() if case.problem.need_weights else None

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Return a module with the parameters of ``reference``."""
        return FusedProjectionAttention(reference)


FUSED_PROJECTION = FusedProjection()
