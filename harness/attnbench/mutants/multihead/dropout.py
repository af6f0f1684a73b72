"""Mutants whose dropout is wrong: when it acts, what it drops, its rate, its random numbers, or its backward pass."""
# ruff: noqa: ARG002  # an override keeps the arguments of the method that it overrides

import math
import time
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.softmax import divide_by_sum

__all__ = ["mutant"]

mutant = MultiheadMutants()
# Fields of a training case with dropout that returns attention weights.
WITH_WEIGHTS: dict[str, Any] = {"dropout": 0.25, "need_weights": True, "mode": "train"}
# Fields of a training case with dropout that returns no attention weights.
DROPPING: dict[str, Any] = {"dropout": 0.25, "mode": "train"}
# Fields of the same case as ``DROPPING``, but in float64.
DOUBLE = DROPPING | {"dtype": "float64"}


class _Dropping(Formula):
    """Base of mutants whose dropout is wrong in training at a rate above 0; all other calls are right."""

    def apply_dropout(self, shares: Tensor) -> Tensor:
        return self.drop_at_rate(shares, self.dropout) if self.training and self.dropout else shares

    def drop_at_rate(self, shares: Tensor, rate: float) -> Tensor:
        return torch.dropout(shares, rate, train=True)


@mutant("dropout_rests_in_eval", "the kernel gets the dropout rate in eval mode too (pytorch#124464)", dropout=0.25)
class _DropoutInEval(Formula):
    def apply_dropout(self, shares: Tensor) -> Tensor:
        return torch.dropout(shares, self.dropout, train=self.dropout > 0)


@mutant("dropout_rests_in_eval", "in eval mode, random numbers are drawn although dropout does not act", dropout=0.25)
class _DrawsInEval(_Dropping):
    def apply_dropout(self, shares: Tensor) -> Tensor:
        if self.dropout:
            torch.rand(1)
        return super().apply_dropout(shares)


@mutant(
    "dropout_survives_eval",
    "one call in eval mode sets the dropout rate to 0 for good (NVIDIA/Megatron-LM#411)",
    **DROPPING,
)
class _RateLostInEval(_Dropping):
    def apply_dropout(self, shares: Tensor) -> Tensor:
        if not self.training:
            self.dropout = 0.0
        return super().apply_dropout(shares)


@mutant("dropout_is_unbiased", "dropout is never applied (MagellaX/StreamAttn#28)", **DROPPING)
class _DropoutNever(_Dropping):
    def drop_at_rate(self, shares: Tensor, rate: float) -> Tensor:
        return shares


@mutant("dropout_is_unbiased", "the weights that dropout keeps are not divided by 1 − p", **DROPPING)
class _DropoutNotRescaled(_Dropping):
    def drop_at_rate(self, shares: Tensor, rate: float) -> Tensor:
        return super().drop_at_rate(shares, rate) * (1 - rate)


@mutant(
    "dropout_is_told_by_weights",
    "dropout acts on the output, but not on the returned weights (pytorch#42929)",
    **WITH_WEIGHTS,
)
class _WeightsBeforeDropout(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        output, weights = super().attend(q, k, v, mask=mask, **named)
        return output, None if weights is None else self.compute_shares(q, k, mask)


@mutant(
    "dropout_is_told_by_weights",
    "if no key is hidden, Gaussian noise of the same variance replaces dropout",
    **WITH_WEIGHTS,
)
class _DropoutGaussian(_Dropping):
    def drop_at_rate(self, shares: Tensor, rate: float) -> Tensor:
        if bool((shares == 0).any()):
            return super().drop_at_rate(shares, rate)
        return shares * (1 + math.sqrt(rate / (1 - rate)) * torch.randn_like(shares))


@mutant(
    "dropout_is_unbiased", "after dropout, each row of weights is divided by its sum again", **DROPPING, regime="peaked"
)
class _DroppedRowsRenormalised(_Dropping):
    def drop_at_rate(self, shares: Tensor, rate: float) -> Tensor:
        return divide_by_sum(super().drop_at_rate(shares, rate))


class _Shared(_Dropping):
    """Base of mutants that use one dropout mask for all indices along the axis ``axis``."""

    axis = 0

    def drop_at_rate(self, shares: Tensor, rate: float) -> Tensor:
        ones = torch.ones_like(shares.narrow(self.axis, 0, min(1, shares.shape[self.axis])))
        return shares * super().drop_at_rate(ones, rate)


@mutant("dropout_masks_are_independent", "the dropout mask has no batch axis", **WITH_WEIGHTS)
class _DropoutSharedByBatch(_Shared):
    axis = 0


@mutant(
    "dropout_masks_are_independent",
    "all heads use the same random numbers, and so share one dropout mask",
    **WITH_WEIGHTS,
)
class _DropoutSharedByHeads(_Shared):
    axis = 1


class _Repeated(_Dropping):
    """Base of mutants whose dropout mask is made for one tile and repeated along the axis ``axis``."""

    axis, tile = -1, 0

    def drop_at_rate(self, shares: Tensor, rate: float) -> Tensor:
        length = shares.shape[self.axis]
        if length <= self.tile:
            return super().drop_at_rate(shares, rate)
        tile = super().drop_at_rate(torch.ones_like(shares.narrow(self.axis, 0, self.tile)), rate)
        repeats = [1] * shares.dim()
        repeats[self.axis] = math.ceil(length / self.tile)
        return shares * tile.repeat(repeats).narrow(self.axis, 0, length)


# Fields of a training case with a dropout rate of 0.1, 66 queries and 257 keys.
LONG: dict[str, Any] = {
    "batch": 1, "queries": 66, "keys": 257, "num_heads": 2, "dropout": 0.1, "need_weights": True, "mask": "pad",
    "mode": "sampling",
}  # fmt: skip


@mutant(
    "dropout_masks_are_independent",
    "the dropout mask repeats after 64 keys (facebookresearch/xformers#755)",
    **WITH_WEIGHTS,
    keys=130,
)
class _DropoutRepeatsAfter64Keys(_Repeated):
    tile = 64


@mutant("dropout_masks_are_independent", "the dropout mask repeats after 128 keys", **LONG)
class _DropoutRepeatsAfter128Keys(_Repeated):
    tile = 128


@mutant("dropout_masks_are_independent", "the dropout mask repeats after 32 queries", **LONG)
class _DropoutRepeatsAfter32Queries(_Repeated):
    axis, tile = -2, 32


@mutant("dropout_follows_the_seed", "the generator is seeded in every call", **DROPPING)
class _DropoutSameEveryCall(_Dropping):
    def drop_at_rate(self, shares: Tensor, rate: float) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        kept = torch.rand(shares.shape, generator=generator).to(shares.device) >= rate
        return shares * kept / (1 - rate)


@mutant(
    "dropout_follows_the_seed",
    "dropout draws from a private generator, which torch.manual_seed does not seed",
    **DROPPING,
)
class _DropoutIgnoresSeed(_Dropping):
    def drop_at_rate(self, shares: Tensor, rate: float) -> Tensor:
        generator = torch.Generator().manual_seed(time.perf_counter_ns())
        kept = torch.rand(shares.shape, generator=generator).to(shares.device) >= rate
        return shares * kept / (1 - rate)


@mutant("dropout_gradients", "the backward pass divides by p instead of 1 − p (NVIDIA/apex#816)", **DOUBLE)
class _DropoutBackwardByRate(_Dropping):
    def drop_at_rate(self, shares: Tensor, rate: float) -> Tensor:
        weights = super().drop_at_rate(shares, rate)
        return replace_gradient(weights, weights * ((1 - rate) / rate))


@mutant("dropout_gradients", "the backward pass draws another dropout mask", **DOUBLE)
class _DropoutBackwardOtherMask(_Dropping):
    def drop_at_rate(self, shares: Tensor, rate: float) -> Tensor:
        return replace_gradient(super().drop_at_rate(shares, rate), super().drop_at_rate(shares, rate))
