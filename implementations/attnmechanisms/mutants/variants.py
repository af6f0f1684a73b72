"""Correct variants of the mechanisms with different rounding. All checks must pass."""

import math

import torch
from torch import Tensor

from attnmechanisms.mutants.formula import FORMULAS, MechanismFormula, replace_steps

__all__ = ["VARIANTS"]

# Number of keys in a block of ``_InBlocks``.
KEYS_AT_ONCE = 2


class _StepByStep(MechanismFormula):
    """The mechanism with no step overridden."""


class _SoftmaxInDouble(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return super().normalise(scores.double(), hide).to(scores.dtype)


class _InBlocks(MechanismFormula):
    """Online softmax: keys block by block, with a running maximum and sum."""

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        logits = (scores if hide is None else scores.masked_fill(hide, -math.inf)).double()
        largest = torch.full_like(logits[..., :1], -math.inf).detach()
        total = torch.zeros_like(largest)
        for block in torch.split(logits, KEYS_AT_ONCE, dim=-1):
            before, largest = largest, torch.maximum(largest, block.detach().amax(dim=-1, keepdim=True))
            finite = _zero_if_infinite(largest)
            total = total * (before - finite).exp() + (block - finite).exp().sum(-1, keepdim=True)
        shares = (logits - _zero_if_infinite(largest)).exp() / total.masked_fill(total == 0, 1.0)
        return shares.to(scores.dtype)


def _zero_if_infinite(largest: Tensor) -> Tensor:
    """Return the number to subtract from a row before exp: its largest score, or 0 in a fully masked row."""
    return largest.masked_fill(largest.isneginf(), 0.0)


VARIANTS = tuple(
    replace_steps(operator, steps) for operator in FORMULAS for steps in (_StepByStep, _SoftmaxInDouble, _InBlocks)
)
