"""Mistakes of dropout: when it acts, on what, by how much, and what backward makes of it."""
# ruff: noqa: ARG002  # a step is handed what its right form needs

import math
import time
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.autograd import with_gradient_of
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()
# Training with dropout, with and without the weights that tell it.
TOLD: dict[str, Any] = {"dropout": 0.25, "need_weights": True, "mode": "train"}
DROPPING: dict[str, Any] = {"dropout": 0.25, "mode": "train"}
DOUBLE = DROPPING | {"dtype": "float64"}


class _Dropping(Formula):
    """Replaces what happens while dropout acts, and leaves the rest alone."""

    def drop(self, shares: Tensor) -> Tensor:
        return self.dropped(shares, self.dropout) if self.training and self.dropout else shares

    def dropped(self, shares: Tensor, rate: float) -> Tensor:
        return torch.dropout(shares, rate, train=True)


@mutant("dropout_rests_in_eval", "a rate handed on that eval does not reach (pytorch#124464)", dropout=0.25)
class _DropoutInEval(Formula):
    def drop(self, shares: Tensor) -> Tensor:
        return torch.dropout(shares, self.dropout, train=self.dropout > 0)


@mutant("dropout_rests_in_eval", "random numbers drawn and thrown away", dropout=0.25)
class _DrawsInEval(_Dropping):
    def drop(self, shares: Tensor) -> Tensor:
        if self.dropout:
            torch.rand(1)
        return super().drop(shares)


@mutant("dropout_survives_eval", "one call in eval sets the rate to 0 for good (NVIDIA/Megatron-LM#411)", **DROPPING)
class _RateLostInEval(_Dropping):
    def drop(self, shares: Tensor) -> Tensor:
        if not self.training:
            self.dropout = 0.0
        return super().drop(shares)


@mutant("dropout_is_unbiased", "never applied (MagellaX/StreamAttn#28)", **DROPPING)
class _DropoutNever(_Dropping):
    def dropped(self, shares: Tensor, rate: float) -> Tensor:
        return shares


@mutant("dropout_is_unbiased", "survivors not divided by 1 − p", **DROPPING)
class _DropoutNotRescaled(_Dropping):
    def dropped(self, shares: Tensor, rate: float) -> Tensor:
        return super().dropped(shares, rate) * (1 - rate)


@mutant("dropout_is_told_by_weights", "clean weights returned beside a dropped output (pytorch#42929)", **TOLD)
class _WeightsBeforeDropout(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        output, weights = super().attend(q, k, v, mask=mask, **named)
        return output, None if weights is None else self.normalise(self.hide(self.score(q, k), mask))


@mutant("dropout_is_told_by_weights", "Gaussian noise of the same variance, where nothing is hidden", **TOLD)
class _DropoutGaussian(_Dropping):
    def dropped(self, shares: Tensor, rate: float) -> Tensor:
        if bool((shares == 0).any()):
            return super().dropped(shares, rate)
        return shares * (1 + math.sqrt(rate / (1 - rate)) * torch.randn_like(shares))


@mutant("dropout_is_unbiased", "rows divided by their sum once more", **DROPPING, regime="peaked")
class _DroppedRowsRenormalised(_Dropping):
    def dropped(self, shares: Tensor, rate: float) -> Tensor:
        weights = super().dropped(shares, rate)
        total = weights.sum(dim=-1, keepdim=True)
        return weights / total.masked_fill(total == 0, 1.0)


class _Shared(_Dropping):
    """One mask along an axis of the weights."""

    axis = 0

    def dropped(self, shares: Tensor, rate: float) -> Tensor:
        ones = torch.ones_like(shares.narrow(self.axis, 0, min(1, shares.shape[self.axis])))
        return shares * super().dropped(ones, rate)


@mutant("dropout_masks_are_independent", "a mask without a batch axis", **TOLD)
class _DropoutSharedByBatch(_Shared):
    axis = 0


@mutant("dropout_masks_are_independent", "a random stream indexed without the head", **TOLD)
class _DropoutSharedByHeads(_Shared):
    axis = 1


@mutant("dropout_follows_the_seed", "a generator seeded in every call", **DROPPING)
class _DropoutSameEveryCall(_Dropping):
    def dropped(self, shares: Tensor, rate: float) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        kept = torch.rand(shares.shape, generator=generator).to(shares.device) >= rate
        return shares * kept / (1 - rate)


@mutant("dropout_follows_the_seed", "a generator of its own, which no seed reaches", **DROPPING)
class _DropoutIgnoresSeed(_Dropping):
    def dropped(self, shares: Tensor, rate: float) -> Tensor:
        generator = torch.Generator().manual_seed(time.perf_counter_ns())
        kept = torch.rand(shares.shape, generator=generator).to(shares.device) >= rate
        return shares * kept / (1 - rate)


@mutant("dropout_gradients", "backward takes p for 1 − p (NVIDIA/apex#816)", **DOUBLE)
class _DropoutBackwardByRate(_Dropping):
    def dropped(self, shares: Tensor, rate: float) -> Tensor:
        weights = super().dropped(shares, rate)
        return with_gradient_of(weights, weights * ((1 - rate) / rate))


@mutant("dropout_gradients", "another mask drawn in backward", **DOUBLE)
class _DropoutBackwardOtherMask(_Dropping):
    def dropped(self, shares: Tensor, rate: float) -> Tensor:
        return with_gradient_of(super().dropped(shares, rate), super().dropped(shares, rate))
