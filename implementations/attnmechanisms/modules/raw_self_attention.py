"""Raw self-attention: every token is query, key and value; there are no parameters and no scale.

    s_ij = x_i · x_j        O = softmax(X Xᵀ) X

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, equation 1, without projections and without 1/√d.
"""

from torch import Tensor

from attnbench.kernel import from_call
from attnmechanisms.modules.arguments import demand
from attnmechanisms.modules.attention import attend, attend_loop, broadcast_padding_mask, dot
from attnmechanisms.modules.loops import from_loop

__all__ = [
    "RAW_SELF_ATTENTION",
    "RAW_SELF_ATTENTION_LOOP",
    "raw_scores",
    "raw_self_attention",
    "raw_self_attention_loop",
]


def raw_scores(tokens: Tensor) -> Tensor:
    """Compute X Xᵀ. Shape: tokens (batch, length, width), returns (batch, length, length)."""
    demand(tokens=(tokens, "batch length width"))
    return tokens @ tokens.mT


def raw_self_attention(tokens: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute the output and the attention weights of every token, by matrix products.

    Shape: tokens (batch, length, width), key_padding_mask (batch, length), true hides a token;
    returns (batch, length, width) and (batch, length, length).

    Raises: ValueError, TypeError if shapes or dtypes do not match.
    """
    _check(tokens, key_padding_mask)
    return attend(raw_scores(tokens), tokens, hidden=broadcast_padding_mask(key_padding_mask))


def raw_self_attention_loop(tokens: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute ``raw_self_attention`` one pair of tokens at a time."""
    _check(tokens, key_padding_mask)
    return attend_loop(dot, tokens, tokens, tokens, hidden=broadcast_padding_mask(key_padding_mask))


def _check(tokens: Tensor, key_padding_mask: Tensor | None) -> None:
    demand(tokens=(tokens, "batch length width"), key_padding_mask=(key_padding_mask, "batch length"))


RAW_SELF_ATTENTION = from_call(
    raw_self_attention, operator="raw_self_attention", source="https://arxiv.org/abs/1706.03762"
)
RAW_SELF_ATTENTION_LOOP = from_loop(
    raw_self_attention_loop,
    operator="raw_self_attention",
    source="https://arxiv.org/abs/1706.03762",
)
