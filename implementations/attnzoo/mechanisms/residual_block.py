"""What an encoder puts around attention: the input is added, and the sum is normalised.

    O = LayerNorm(X + Attention(X))        LayerNorm(z) = γ ⊙ (z − mean z) / √(var z + ε) + β

Mean and variance are over the features of each token for itself.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.1; Ba et al. 2016,
https://arxiv.org/abs/1607.06450.
"""

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["EPSILON", "ResidualBlock", "add_and_norm", "add_and_norm_loop"]

# Added to the variance; that of torch.nn.LayerNorm.
EPSILON = 1e-5


def add_and_norm(tokens: Tensor, attended: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm(tokens + attended).

    Shape: tokens and attended (batch, length, embed_dim), weight and bias (embed_dim); returns that of tokens.
    """
    return nn.functional.layer_norm(tokens + attended, weight.shape, weight, bias, EPSILON)


def add_and_norm_loop(tokens: Tensor, attended: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same, a token at a time and a feature at a time."""
    width = tokens.shape[-1]
    rows = []
    for token, addition in zip(tokens.flatten(0, 1), attended.flatten(0, 1), strict=True):
        features = [token[i] + addition[i] for i in range(width)]
        mean = torch.stack(features).sum() / width
        variance = torch.stack([(feature - mean) ** 2 for feature in features]).sum() / width
        root = torch.sqrt(variance + EPSILON)
        rows.append(torch.stack([weight[i] * (features[i] - mean) / root + bias[i] for i in range(width)]))
    return torch.unflatten(torch.stack(rows), 0, tokens.shape[:2])


class ResidualBlock(nn.Module):
    """Any attention with the reference's forward, batch first, inside the block.

    The attention and the norm are made once and kept: made in ``forward``, they would be new at every call, and nothing
    would be trained.
    """

    def __init__(self, attention: nn.Module, embed_dim: int) -> None:
        super().__init__()
        self.attention = attention
        self.norm = nn.LayerNorm(embed_dim, eps=EPSILON)

    def forward(self, tokens: Tensor, **masks: Any) -> tuple[Tensor, Tensor | None]:
        """Output, of the tokens' shape, and the attention's weights.

        ``masks`` are keywords of the reference's forward: key_padding_mask, attn_mask, need_weights and the like.

        Shape: tokens (batch, length, embed_dim).
        """
        attended, weights = self.attention(tokens, tokens, tokens, **masks)
        return add_and_norm(tokens, attended, self.norm.weight, self.norm.bias), weights
