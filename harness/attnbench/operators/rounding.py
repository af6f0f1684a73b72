"""Rounding as a model: the stages of a formula in float64, each off by relative noise of one roundoff."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.oracle.error_budget import ROUNDOFF

__all__ = ["Noise", "capped", "softmax", "weighted_sum"]


class Noise:
    """Rounding as a model: relative noise, uniform in ±``roundoff``, on a value and on the gradient that comes back."""

    def __init__(self, roundoff: float, seed: int) -> None:
        self.roundoff = roundoff
        # Nobody adds up in less than float32.
        self.accumulation = min(roundoff, ROUNDOFF["float32"])
        self.generator = torch.Generator().manual_seed(seed)

    def on(self, tensor: Tensor) -> Tensor:
        """Tensor with each element off by its own relative error."""
        errors = torch.rand(tensor.shape, generator=self.generator, dtype=tensor.dtype)
        return tensor * (1 + self.roundoff * (2 * errors - 1))

    def on_sum(self, tensor: Tensor, terms: int) -> Tensor:
        """Sums of so many products, each off by what adding them up in turn costs: much, where terms cancel.

        Partial sums grow as a random walk does: their squares add up to terms / 2 times the result's own. Rounded to
        nearest, a number is off by √½ of ``roundoff`` at the typical worst, hence √terms / 2.
        """
        if not terms or tensor.numel() == 0:
            return tensor
        errors = torch.rand(tensor.shape, generator=self.generator, dtype=tensor.dtype)
        typical = tensor.detach().square().mean(dim=-1, keepdim=True).sqrt()
        return tensor + self.accumulation * math.sqrt(terms) / 2 * (2 * errors - 1) * typical

    def recomputed(self, logits: Tensor) -> Tensor:
        """By what a row of exp(x − L) is off when L, the row's rounded logsumexp, is all that was kept of it.

        Shape: returns (…, queries, 1).
        """
        if logits.shape[-1] == 0:
            return torch.ones_like(logits[..., :1])
        logsumexp = logits.detach().logsumexp(dim=-1, keepdim=True)
        errors = torch.rand(logsumexp.shape, generator=self.generator, dtype=logits.dtype)
        return 1 + self.roundoff * (2 * errors - 1) * logsumexp.masked_fill(logsumexp == -math.inf, 0.0).abs()

    def on_gradient(self, tensor: Tensor) -> Tensor:
        """The tensor as it is, with noise on the gradient that comes back."""
        return _NoisyGradient.apply(tensor, self)  # type: ignore[no-any-return, no-untyped-call]

    def __call__(self, tensor: Tensor) -> Tensor:
        """Noisy identity, forward and backward."""
        return _NoisyIdentity.apply(tensor, self)  # type: ignore[no-any-return, no-untyped-call]


class _NoisyIdentity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, noise: Noise) -> Tensor:
        ctx.noise = noise
        return noise.on(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.noise.on(gradients[0]), None


class _NoisyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, noise: Noise) -> Tensor:
        ctx.noise = noise
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.noise.on(gradients[0]), None


class _NoisySoftmax(torch.autograd.Function):
    """Softmax whose backward is rounded as fused kernels round it: dS = P (dP − δ), with noise on dP and on δ.

    P is recomputed from the logits and their logsumexp.

    Source: Dao 2023, https://arxiv.org/abs/2307.08691, algorithm 2.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, noise: Noise) -> Tensor:
        ctx.noise = noise
        probabilities = noise.on(softmax(logits))
        ctx.save_for_backward(probabilities * noise.recomputed(logits))
        return probabilities

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (probabilities,) = ctx.saved_tensors
        noise = ctx.noise
        delta = (probabilities * gradients[0]).sum(dim=-1, keepdim=True)
        return noise.on(probabilities * (noise.on(gradients[0]) - noise.on(delta))), None


class _NoisyProduct(torch.autograd.Function):
    """Weights times values, whose backward takes the weights as they are recomputed."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, v: Tensor, recomputed: Tensor) -> Tensor:
        ctx.save_for_backward(weights * recomputed, v)
        return weights @ v

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, v = ctx.saved_tensors
        return gradients[0] @ v.mT, weights.mT @ gradients[0], None


def softmax(logits: Tensor, noise: Noise | None = None) -> Tensor:
    """exp(x − max) / Σ over keys, and 0 in a row whose logits are all minus infinity."""
    if noise:
        return _NoisySoftmax.apply(logits, noise)  # type: ignore[no-any-return, no-untyped-call]
    if logits.shape[-1] == 0:
        return logits
    largest = logits.detach().amax(dim=-1, keepdim=True)
    exponentials = (logits - largest.masked_fill(largest == -math.inf, 0.0)).exp()
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / total.masked_fill(total == 0, 1.0)


def weighted_sum(weights: Tensor, v: Tensor, logits: Tensor, noise: Noise | None = None) -> Tensor:
    """Weights times values; its backward takes the weights as they are recomputed from the logits they came from."""
    if noise is None:
        return weights @ v
    return _NoisyProduct.apply(weights, v, noise.recomputed(logits))  # type: ignore[no-any-return, no-untyped-call]


class _NoisyTanh(torch.autograd.Function):
    """tanh, whose backward takes it as it was rounded: 1 − tanh² has nothing but that rounding where tanh is near 1."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, noise: Noise) -> Tensor:
        ctx.noise = noise
        result = noise.on(tensor.tanh())
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return ctx.noise.on(gradients[0] * (1 - result * result)), None


def capped(logits: Tensor, cap: float, noise: Noise | None = None) -> Tensor:
    """Logits bent to stay between −cap and cap: cap · tanh(x / cap)."""
    if noise is None:
        return cap * (logits / cap).tanh()
    return noise(cap * _NoisyTanh.apply(noise(logits / cap), noise))  # type: ignore[no-untyped-call]
