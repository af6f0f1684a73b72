"""Scaled self-attention with learned projections; the output may be wider or narrower than the tokens.

    Q = X W_q,  K = X W_k,  V = X W_v        O = softmax(Q Kᵀ / √d_k) V

d_k is the width of a key, which is the width of the output. ``ScaledSelfAttention`` has W_q, W_k
and W_v as plain parameters, drawn uniformly from 0 to 1. ``LinearSelfAttention`` has linear layers.
They store the transposed matrices, drawn uniformly from −1/√width to 1/√width.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, equation 1.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnbench.argument_checks import demand_shapes, demand_whole_numbers
from attnbench.kernel import from_call
from attnmechanisms.modules.arguments import demand
from attnmechanisms.modules.attention import attend, attend_loop, broadcast_padding_mask, dot, project_loop
from attnmechanisms.modules.loops import from_loop

__all__ = [
    "SCALED_SELF_ATTENTION",
    "SCALED_SELF_ATTENTION_LOOP",
    "LinearSelfAttention",
    "ScaledSelfAttention",
    "scaled_self_attention",
    "scaled_self_attention_loop",
]


def scaled_self_attention(
    tokens: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, key_padding_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the output and the attention weights of every token, by matrix products.

    Shape: tokens (batch, length, width), each parameter (width, out_width), key_padding_mask (batch, length), true
    hides a token; returns (batch, length, out_width) and (batch, length, length).

    Raises: ValueError, TypeError if shapes or dtypes do not match.
    """
    _check(tokens, w_q, w_k, w_v, key_padding_mask)
    q, k, v = tokens @ w_q, tokens @ w_k, tokens @ w_v
    return attend(q @ k.mT / math.sqrt(k.shape[-1]), v, hidden=broadcast_padding_mask(key_padding_mask))


def scaled_self_attention_loop(
    tokens: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, key_padding_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute ``scaled_self_attention`` one number at a time."""
    _check(tokens, w_q, w_k, w_v, key_padding_mask)
    q, k, v = (project_loop(tokens, weight.T) for weight in (w_q, w_k, w_v))
    root, hidden = math.sqrt(w_k.shape[-1]), broadcast_padding_mask(key_padding_mask)
    return attend_loop(lambda query, key: dot(query, key) / root, q, k, v, hidden=hidden)


def _check(tokens: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, key_padding_mask: Tensor | None) -> None:
    demand(
        tokens=(tokens, "batch length width"),
        w_q=(w_q, "width out_width"),
        w_k=(w_k, "width out_width"),
        w_v=(w_v, "width out_width"),
        key_padding_mask=(key_padding_mask, "batch length"),
    )


def _copy_weight(name: str, weight: Tensor, own: Tensor) -> None:
    """Copy ``weight`` into ``own``, and convert the numbers to the dtype of ``own``.

    ``name`` is the name of ``weight`` in error messages.

    Raises: ValueError if the shapes differ.
    """
    demand_shapes(own=(own, "width out_width"), **{name: (weight, "width out_width")})
    own.copy_(weight)


class ScaledSelfAttention(nn.Module):
    """Scaled self-attention with plain parameters, each (width, out_width), drawn uniformly from [0, 1)."""

    def __init__(
        self, width: int, out_width: int, form: Callable[..., tuple[Tensor, Tensor]] = scaled_self_attention
    ) -> None:
        super().__init__()
        demand_whole_numbers(1, width=width, out_width=out_width)
        self.w_q = nn.Parameter(torch.rand(width, out_width))
        self.w_k = nn.Parameter(torch.rand(width, out_width))
        self.w_v = nn.Parameter(torch.rand(width, out_width))
        self._form = form

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute output and attention weights.

        Shape: returns (batch, length, out_width) and (batch, length, length).
        """
        return self._form(tokens, self.w_q, self.w_k, self.w_v, key_padding_mask)

    @torch.no_grad()
    def take(self, linear: "LinearSelfAttention") -> None:
        """Copy the transposed weights of another module's linear layers into this module's parameters.

        Raises: ValueError if the widths of the two modules differ.
        """
        _copy_weight("w_q", linear.w_q.weight.T, self.w_q)
        _copy_weight("w_k", linear.w_k.weight.T, self.w_k)
        _copy_weight("w_v", linear.w_v.weight.T, self.w_v)


class LinearSelfAttention(nn.Module):
    """Scaled self-attention whose projections are linear layers without bias."""

    def __init__(
        self, width: int, out_width: int, form: Callable[..., tuple[Tensor, Tensor]] = scaled_self_attention
    ) -> None:
        super().__init__()
        demand_whole_numbers(1, width=width, out_width=out_width)
        self.w_q = nn.Linear(width, out_width, bias=False)
        self.w_k = nn.Linear(width, out_width, bias=False)
        self.w_v = nn.Linear(width, out_width, bias=False)
        self._form = form

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute output and attention weights.

        Shape: returns (batch, length, out_width) and (batch, length, length).
        """
        return self._form(tokens, self.w_q.weight.T, self.w_k.weight.T, self.w_v.weight.T, key_padding_mask)

    @torch.no_grad()
    def take(self, parameters: ScaledSelfAttention) -> None:
        """Copy the transposed parameters of another module into this module's linear layers.

        Raises: ValueError if the widths of the two modules differ.
        """
        _copy_weight("w_q", parameters.w_q, self.w_q.weight.T)
        _copy_weight("w_k", parameters.w_k, self.w_k.weight.T)
        _copy_weight("w_v", parameters.w_v, self.w_v.weight.T)


SCALED_SELF_ATTENTION = from_call(
    scaled_self_attention, operator="scaled_self_attention", source="https://arxiv.org/abs/1706.03762"
)
SCALED_SELF_ATTENTION_LOOP = from_loop(
    scaled_self_attention_loop,
    operator="scaled_self_attention",
    source="https://arxiv.org/abs/1706.03762",
)
