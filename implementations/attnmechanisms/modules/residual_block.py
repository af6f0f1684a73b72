"""The residual block of an encoder: the input is added to the output of attention, and the sum is normalised.

    O = LayerNorm(X + Attention(X))        LayerNorm(z) = γ ⊙ (z − mean z) / √(var z + ε) + β

Mean and variance are taken over the features of each token separately.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.1; Ba et al. 2016,
https://arxiv.org/abs/1607.06450.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.argument_checks import demand_heads, demand_whole_numbers
from attnbench.kernel import from_call
from attnmechanisms.modules.arguments import demand
from attnmechanisms.modules.attention import assemble
from attnmechanisms.modules.loops import from_loop

__all__ = [
    "EPSILON",
    "RESIDUAL_BLOCK",
    "RESIDUAL_BLOCK_LOOP",
    "ResidualBlock",
    "add_and_norm",
    "add_and_norm_loop",
    "residual_block",
    "residual_block_loop",
]

# Number that LayerNorm adds to the variance. The value is the default of torch.nn.LayerNorm.
EPSILON = 1e-5


def add_and_norm(tokens: Tensor, attended: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute LayerNorm(tokens + attended).

    Shape: tokens and attended (batch, length, embed_dim), weight and bias (embed_dim); returns
    a tensor with the shape of tokens.

    Raises: ValueError, TypeError if shapes or dtypes do not match.
    """
    _check(tokens, attended, weight, bias)
    return nn.functional.layer_norm(tokens + attended, weight.shape, weight, bias, EPSILON)


def add_and_norm_loop(tokens: Tensor, attended: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute ``add_and_norm`` one token and one feature at a time."""
    _check(tokens, attended, weight, bias)
    width = tokens.shape[-1]
    rows = []
    for token, addition in zip(tokens.flatten(0, 1), attended.flatten(0, 1), strict=True):
        features = [token[i] + addition[i] for i in range(width)]
        mean = torch.stack(features).sum() / width
        variance = torch.stack([(feature - mean) ** 2 for feature in features]).sum() / width
        root = torch.sqrt(variance + EPSILON)
        rows.append(torch.stack([weight[i] * (features[i] - mean) / root + bias[i] for i in range(width)]))
    return assemble(rows, tokens.shape, tokens)


def _check(tokens: Tensor, attended: Tensor, weight: Tensor, bias: Tensor) -> None:
    demand(
        tokens=(tokens, "batch length embed_dim"),
        attended=(attended, "batch length embed_dim"),
        weight=(weight, "embed_dim"),
        bias=(bias, "embed_dim"),
    )


class ResidualBlock(nn.Module):
    """The residual block around an attention module.

    The attention module must be batch-first, and its ``forward`` must take the arguments of
    ``torch.nn.MultiheadAttention``. The attention module and the LayerNorm are created outside
    ``forward``. If ``forward`` created them, every call would use new parameters, and training
    would have no effect.
    """

    def __init__(self, attention: nn.Module, embed_dim: int, form: Callable[..., Tensor] = add_and_norm) -> None:
        super().__init__()
        demand_whole_numbers(1, embed_dim=embed_dim)
        if not getattr(attention, "batch_first", True):
            raise ValueError("attention must have batch_first=True, got batch_first=False, which would mix sequences")
        self.attention = attention
        self.norm = nn.LayerNorm(embed_dim, eps=EPSILON)
        self._form = form

    def forward(self, tokens: Tensor, **masks: Any) -> tuple[Tensor, Tensor | None]:
        """Compute the output, which has the shape of tokens, and the attention weights.

        ``masks`` are keyword arguments of the attention module's ``forward``, such as
        key_padding_mask, attn_mask and need_weights.

        Shape: tokens (batch, length, embed_dim).
        """
        attended, weights = self.attention(tokens, tokens, tokens, **masks)
        return self._form(tokens, attended, self.norm.weight, self.norm.bias), weights


def residual_block(
    tokens: Tensor,
    in_proj_weight: Tensor,
    in_proj_bias: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    *,
    num_heads: int,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    form: Callable[..., Tensor] = add_and_norm,
) -> tuple[Tensor, Tensor | None]:
    """Compute the residual block from its parameters, with torch's ``multi_head_attention_forward``.

    A query that sees no key gives NaN, as in ``torch.nn.MultiheadAttention``. Every sequence
    therefore needs a token that is not padding. ``form`` adds the tokens to the output of attention
    and applies LayerNorm, as ``add_and_norm`` does.

    Shape: tokens (batch, length, embed_dim), attention parameters as in
    ``torch.nn.MultiheadAttention``, norm_weight and norm_bias (embed_dim); key_padding_mask
    (batch, length) and attn_mask (length, length), true hides a key; returns the output with the
    shape of tokens, and the attention weights averaged over heads (batch, length, length).

    Raises: ValueError, TypeError if shapes or dtypes do not match.
    """
    demand(tokens=(tokens, "batch length embed_dim"))
    demand_heads(num_heads, {"embed_dim": tokens.shape[-1]})
    demand(
        tokens=(tokens, "batch length embed_dim"),
        out_proj_weight=(out_proj_weight, "embed_dim embed_dim"),
        out_proj_bias=(out_proj_bias, "embed_dim"),
        in_proj_weight=(in_proj_weight, f"{3 * tokens.shape[-1]} embed_dim"),
        in_proj_bias=(in_proj_bias, f"{3 * tokens.shape[-1]}"),
        key_padding_mask=(key_padding_mask, "batch length"),
        attn_mask=(attn_mask, "length length"),
    )
    rows = tokens.transpose(0, 1)  # (length, batch, embed_dim), as multi_head_attention_forward needs it
    attended, weights = nn.functional.multi_head_attention_forward(
        rows, rows, rows, tokens.shape[-1], num_heads, in_proj_weight, in_proj_bias,
        bias_k=None, bias_v=None, add_zero_attn=False, dropout_p=0.0, out_proj_weight=out_proj_weight,
        out_proj_bias=out_proj_bias, key_padding_mask=key_padding_mask, attn_mask=attn_mask,
    )  # fmt: skip
    return form(tokens, attended.transpose(0, 1), norm_weight, norm_bias), weights


def residual_block_loop(tokens: Tensor, **given: Any) -> tuple[Tensor, Tensor | None]:
    """Compute ``residual_block``; add the residual and apply LayerNorm one number at a time."""
    return residual_block(tokens, form=add_and_norm_loop, **given)


RESIDUAL_BLOCK = from_call(residual_block, operator="residual_block", source="https://arxiv.org/abs/1706.03762")
RESIDUAL_BLOCK_LOOP = from_loop(
    residual_block_loop, operator="residual_block", source="https://arxiv.org/abs/1706.03762"
)
