"""Attention whose backward pass recomputes the weights from the logsumexp, with a batching rule for vmap."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.softmax import make_finite, widen

__all__ = ["Recomputing"]

Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None, None]


def _add(logits: Tensor, mask: Tensor | None) -> Tensor:
    return logits if mask is None else logits + mask


def _share(q: Tensor, k: Tensor, mask: Tensor | None, lse: Tensor) -> Tensor:
    """Return the attention weights before dropout."""
    return (widen(_add(q @ k.mT, mask)) - lse).exp().to(q.dtype)


class Recomputing(torch.autograd.Function):
    """softmax(q kᵀ + mask) v, where ``noise`` multiplies the weights; saves inputs and logsumexp, nothing larger.

    Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim), mask (additive) broadcastable
    to the logits, noise (batch, heads, queries, keys); returns the output and the logsumexp of each row.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute the output and the logsumexp, which is infinite in a fully masked row."""
        logits = widen(_add(q @ k.mT, mask))
        largest = make_finite(logits.amax(dim=-1, keepdim=True))
        total = (logits - largest).exp().sum(dim=-1, keepdim=True)
        lse = torch.where(total == 0, math.inf, largest + total.log())
        shares = _share(q, k, mask, lse)
        return (shares if noise is None else shares * noise) @ v, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save the inputs and the logsumexp."""
        ctx.mark_non_differentiable(output[1])
        ctx.shape = None if inputs[3] is None else inputs[3].shape
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Gradients:
        """Return the gradients of q, k, v and mask."""
        q, k, v, mask, noise, lse = ctx.saved_tensors
        shares = _share(q, k, mask, lse)
        dropped, d_shares = shares, gradient @ v.mT
        if noise is not None:
            dropped, d_shares = shares * noise, d_shares * noise
        d_logits = shares * (d_shares - (d_shares * shares).sum(dim=-1, keepdim=True))
        d_mask = d_logits.sum_to_size(ctx.shape) if mask is not None and ctx.needs_input_grad[3] else None
        return d_logits @ k, d_logits.mT @ q, dropped.mT @ gradient, d_mask, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, noise: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Fold the new axis into the batch; a mask is first expanded to the batch of its own example."""
        count = info.batch_size

        def lead(x: Tensor, axis: int | None) -> Tensor:
            return x.expand(count, *x.shape) if axis is None else x.movedim(axis, 0)

        led = [None if x is None else lead(x, axis) for x, axis in zip((q, k, v, mask, noise), in_dims, strict=True)]
        batch = led[0].shape[1]  # type: ignore[union-attr]
        if led[3] is not None:
            while led[3].dim() < 5:
                led[3] = led[3].unsqueeze(1)
            led[3] = led[3].expand(count, batch, *led[3].shape[2:])
        output, lse = Recomputing.apply(*(None if x is None else x.flatten(0, 1) for x in led))  # type: ignore[no-untyped-call]
        return (output.unflatten(0, (count, batch)), lse.unflatten(0, (count, batch))), (0, 0)
