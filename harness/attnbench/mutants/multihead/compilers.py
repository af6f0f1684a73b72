"""Mutants that are wrong only under torch.compile, torch.export or autocast."""

import torch
from torch import Tensor

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant("compiled_parity", "the branch for torch.compile lacks the scale (pytorch#174049)", mode="aot")
class _ScaleLostWhenCompiled(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT if torch.compiler.is_compiling() else super().score(q, k)


@mutant("compiled_parity", "the exported program ignores the mask", mode="exported", mask="bool2d")
class _MaskLostWhenExported(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return super().apply_mask(logits, None if torch.compiler.is_exporting() else mask)


@mutant(
    "compiled_parity",
    "under torch.compile, keys are transposed if there are as many keys as features of a head (pytorch#195320)",
    mode="aot",
    keys=8,
)
class _KeysTransposedWhenCompiled(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        square = k.shape[-1] == k.shape[-2]
        return super().score(q, k.mT if square and torch.compiler.is_compiling() else k)


@mutant(
    "compiled_for_other_lengths",
    "the number of keys in the first compiled graph is used in all later graphs",
    mode="aot",
)
class _LengthBakedIn(Formula):
    _keys: int | None = None

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return super().sum_values(weights, v)
        if self._keys is None:
            self._keys = int(v.shape[2])
        return super().sum_values(weights[..., : self._keys], v[:, :, : self._keys])


@mutant("autocast_parity", "the branch for autocast ignores the mask", mode="autocast", dtype="bfloat16", mask="pad")
class _MaskLostUnderAutocast(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return super().apply_mask(logits, None if torch.is_autocast_enabled("cpu") else mask)


@mutant(
    "autocast_parity",
    "autocast is switched off inside the call: the output is float32, not autocast's dtype",
    mode="autocast",
    dtype="float16",
)
class _AutocastLeavesSingle(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        return (output.float() if torch.is_autocast_enabled("cpu") else output), weights
