"""The reference ``torch.nn.MultiheadAttention`` as an implementation.

MultiHead(Q, K, V) = Concat(head_1, …, head_h) Wᴼ with head_i = Attention(Q W_iᑫ, K W_iᴷ, V W_iⱽ).

Shape: query (batch, queries, embed_dim), key (batch, keys, kdim), value (batch, keys, vdim).
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html
"""

import copy

from torch import nn

from attnbench.interface import Implementation, Policies

__all__ = ["TORCH_MHA"]


class TorchMultiheadAttention(Implementation):
    """``torch.nn.MultiheadAttention`` with the parameters of the reference."""

    name = "torch_mha"
    source = "https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html"
    policies = Policies(unordered_gradients=("cuda",))

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Return a copy of the reference, so that changes to the copy do not reach the reference."""
        return copy.deepcopy(reference)


TORCH_MHA = TorchMultiheadAttention()
