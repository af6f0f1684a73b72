"""The rounding model: relative noise of one roundoff at every step of a formula in float64."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.interface import HiddenRowGradients, HiddenRows
from attnbench.oracle.error_budget import ROUNDOFF

__all__ = ["Noise", "RowRule", "fill_hidden_rows", "soft_cap", "softmax", "weighted_sum"]


# Number of keys in each block that a ring joins: the smallest tile of keys in fused kernels.
JOINED_KEYS = 16


class Noise:
    """Seeded relative noise, uniform in ±``roundoff``, on values in forward and on gradients in backward."""

    def __init__(self, roundoff: float, seed: int) -> None:
        self.roundoff = roundoff
        # Roundoff of sums: kernels accumulate in float32 or in a more precise dtype.
        self.accumulation = min(roundoff, ROUNDOFF["float32"])
        self.generator = torch.Generator().manual_seed(seed)
        # The errors of joins are drawn from a separate generator, so that they do not change the noise at other steps.
        self.join_generator = torch.Generator().manual_seed(seed)

    def perturb(self, tensor: Tensor) -> Tensor:
        """Return the tensor with an independent relative error on each element."""
        errors = torch.rand(tensor.shape, generator=self.generator, dtype=tensor.dtype)
        return tensor * (1 + self.roundoff * (2 * errors - 1))

    def perturb_sum(self, tensor: Tensor, terms: int) -> Tensor:
        """Return sums of ``terms`` products with the error of sequential accumulation.

        Let u be ``accumulation``, the roundoff of sums. The largest relative error of one rounding to nearest is u/2 to
        u, depending on the mantissa; √½ · u is its typical size. Partial sums grow like a random walk, so the squares
        of all partial sums add up to terms / 2 times the square of the result. The error of the result is therefore at
        most √(terms / 2) · √½ · u = √terms / 2 · u. It is relative to the root mean square of the last axis, so a
        result whose terms cancel has a large relative error.
        """
        if not terms or tensor.numel() == 0:
            return tensor
        errors = torch.rand(tensor.shape, generator=self.generator, dtype=tensor.dtype)
        typical = tensor.detach().square().mean(dim=-1, keepdim=True).sqrt()
        return tensor + self.accumulation * math.sqrt(terms) / 2 * (2 * errors - 1) * typical

    def draw_recomputation_factor(self, logits: Tensor) -> Tensor:
        """Return the factor by which a rounding error of L changes a row of attention weights exp(x − L).

        x is a row of logits, and L is the logsumexp of x. Fused kernels store L in forward, and recompute the weights
        from x and L in backward.

        Shape: returns (…, queries, 1).
        """
        if logits.shape[-1] == 0:
            return torch.ones_like(logits[..., :1])
        logsumexp = logits.detach().logsumexp(dim=-1, keepdim=True)
        errors = torch.rand(logsumexp.shape, generator=self.generator, dtype=logits.dtype)
        return 1 + self.roundoff * (2 * errors - 1) * logsumexp.masked_fill(logsumexp == -math.inf, 0.0).abs()

    def draw_join_factor(self, logits: Tensor) -> Tensor:
        """Return the factor by which the rounding errors of a join change attention weights.

        Ring attention, flash decoding and split keys compute a softmax for each block of keys, with the logsumexp Lᵢ of
        the block's logits. They join the blocks by the factors exp(Lᵢ − L), where L is the logsumexp of all Lᵢ. Lᵢ and
        L are stored in the precision of sums, so a relative error of one of them changes a factor by |L| times this
        error. The error of Lᵢ is common to a block, and the error of L is common to the row: neither averages out in
        the sum over keys. Here the blocks are the two halves of the keys, because more blocks average more.

        A ring joins one block after the other, and stores L again after each join. The errors of L after n joins add up
        like a random walk to √(n / 2) times the error of one join, like the errors of the sums in ``perturb_sum``.

        Source: Liu et al. 2023, https://arxiv.org/abs/2310.01889; Flash-Decoding, Dao et al. 2023,
        https://pytorch.org/blog/flash-decoding/.

        Shape: returns the shape of ``logits``, (…, queries, keys).
        """
        keys = logits.shape[-1]
        if keys < 2:
            return torch.ones_like(logits)
        halves = torch.split(logits.detach(), [keys - keys // 2, keys // 2], dim=-1)
        parts = [half.logsumexp(dim=-1, keepdim=True) for half in halves]
        joins = max(math.sqrt(keys / JOINED_KEYS / 2), 1.0)
        whole = joins * self._draw_join_error(torch.logaddexp(*parts))
        return torch.cat(
            [
                (1 + self._draw_join_error(part) - whole).expand_as(half)
                for part, half in zip(parts, halves, strict=True)
            ],
            dim=-1,
        )

    def _draw_join_error(self, logsumexp: Tensor) -> Tensor:
        """Return a random absolute error of a stored logsumexp; 0 where the logsumexp is minus infinity."""
        errors = torch.rand(logsumexp.shape, generator=self.join_generator, dtype=logsumexp.dtype)
        return self.accumulation * (2 * errors - 1) * logsumexp.masked_fill(logsumexp == -math.inf, 0.0)

    def perturb_gradient(self, tensor: Tensor) -> Tensor:
        """Return the tensor unchanged, with noise on its gradient in backward."""
        return _NoisyGradient.apply(tensor, self)  # type: ignore[no-any-return, no-untyped-call]

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the tensor with noise in forward and on its gradient in backward."""
        return _NoisyIdentity.apply(tensor, self)  # type: ignore[no-any-return, no-untyped-call]


class _NoisyIdentity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, noise: Noise) -> Tensor:
        ctx.noise = noise
        return noise.perturb(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.noise.perturb(gradients[0]), None


class _NoisyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, noise: Noise) -> Tensor:
        ctx.noise = noise
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.noise.perturb(gradients[0]), None


class _NoisySoftmax(torch.autograd.Function):
    """Softmax with the errors of a join, whose backward is rounded as in fused kernels.

    Backward is dS = P (dP − δ), with noise on dP, on δ and on dS.

    P is the softmax, recomputed from the logits and their logsumexp. dS and dP are the gradients of logits and softmax,
    and δ is the sum of P · dP over keys.

    Source: Dao 2023, https://arxiv.org/abs/2307.08691, algorithm 2.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, noise: Noise) -> Tensor:
        ctx.noise = noise
        probabilities = noise.perturb(softmax(logits)) * noise.draw_join_factor(logits)
        ctx.save_for_backward(probabilities * noise.draw_recomputation_factor(logits))
        return probabilities

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (probabilities,) = ctx.saved_tensors
        noise = ctx.noise
        delta = (probabilities * gradients[0]).sum(dim=-1, keepdim=True)
        return noise.perturb(probabilities * (noise.perturb(gradients[0]) - noise.perturb(delta))), None


class _NoisyProduct(torch.autograd.Function):
    """Attention weights times values; backward uses other weights, ``weights * recomputed``.

    The factor ``recomputed`` is 1 plus the relative rounding error of weights that are recomputed from the logits.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, v: Tensor, recomputed: Tensor) -> Tensor:
        ctx.save_for_backward(weights * recomputed, v)
        return weights @ v

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, v = ctx.saved_tensors
        return gradients[0] @ v.mT, weights.mT @ gradients[0], None


def softmax(logits: Tensor, noise: Noise | None = None) -> Tensor:
    """Return the softmax over keys, which is 0 in a row whose logits are all minus infinity."""
    if noise:
        return _NoisySoftmax.apply(logits, noise)  # type: ignore[no-any-return, no-untyped-call]
    if logits.shape[-1] == 0:
        return logits
    largest = logits.detach().amax(dim=-1, keepdim=True)
    exponentials = (logits - largest.masked_fill(largest == -math.inf, 0.0)).exp()
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / total.masked_fill(total == 0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRule:
    """The attention weights of a fully masked row, and the gradient that they pass on to the logits of the row."""

    weights: HiddenRows
    gradients: HiddenRowGradients


def fill_hidden_rows(rule: RowRule, logits: Tensor, noise: Noise | None = None) -> Tensor:
    """Return the softmax over keys, with the weights and gradients of ``rule`` in fully masked rows."""
    shares = softmax(logits, noise)
    return shares if logits.shape[-1] == 0 else _HiddenRows.apply(shares, logits, rule, noise)  # type: ignore[no-untyped-call]


class _HiddenRows(torch.autograd.Function):
    """Weights whose fully masked rows have the value and the gradient of a ``RowRule``."""

    @staticmethod
    def forward(ctx: Any, shares: Tensor, logits: Tensor, rule: RowRule, noise: Noise | None) -> Tensor:
        hidden = (logits == -math.inf).all(dim=-1, keepdim=True)
        ctx.save_for_backward(hidden)
        ctx.rule = rule
        value = {"zero": 0.0, "nan": math.nan, "mean": 1 / logits.shape[-1]}[rule.weights]
        weights = torch.full_like(shares, value)
        return torch.where(hidden, noise.perturb(weights) if noise else weights, shares)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (hidden,) = ctx.saved_tensors
        (shares,) = gradients
        if ctx.rule.gradients == "softmax":
            # The derivative of a softmax whose weights are all 1 / keys.
            through = (shares - shares.mean(dim=-1, keepdim=True)) / shares.shape[-1]
        else:
            through = torch.full_like(shares, math.nan if ctx.rule.gradients == "nan" else 0.0)
        return shares.masked_fill(hidden, 0.0), torch.where(hidden, through, 0.0), None, None


def weighted_sum(weights: Tensor, v: Tensor, logits: Tensor, noise: Noise | None = None) -> Tensor:
    """Return attention weights times values.

    With noise, backward uses weights with the rounding error of a recomputation from ``logits``.
    """
    if noise is None:
        return weights @ v
    return _NoisyProduct.apply(weights, v, noise.draw_recomputation_factor(logits))  # type: ignore[no-any-return, no-untyped-call]


class _NoisyTanh(torch.autograd.Function):
    """tanh whose backward computes the derivative from the rounded result.

    Where tanh is near ±1, its rounding error is large relative to its derivative 1 − tanh².
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, noise: Noise) -> Tensor:
        ctx.noise = noise
        result = noise.perturb(tensor.tanh())
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return ctx.noise.perturb(gradients[0] * (1 - result * result)), None


def soft_cap(logits: Tensor, cap: float, noise: Noise | None = None) -> Tensor:
    """Return cap · tanh(x / cap): the logits x, limited to between −cap and cap."""
    if noise is None:
        return cap * (logits / cap).tanh()
    return noise(cap * _NoisyTanh.apply(noise(logits / cap), noise))  # type: ignore[no-untyped-call]
