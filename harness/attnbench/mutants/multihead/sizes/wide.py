"""Mutants whose backward pass is wrong for wide heads; the outputs are right."""

from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula

__all__ = ["mutant"]

mutant = MultiheadMutants()
# SMALL: fields of a training case. LARGE: like SMALL, but with more than one tile of 64 tokens. PEAKED: like SMALL, but
# with peaked logits.
SMALL: dict[str, Any] = {"queries": 17, "keys": 33, "num_heads": 2, "mode": "train"}
LARGE = SMALL | {"queries": 66, "keys": 72}
PEAKED = SMALL | {"regime": "peaked"}


@mutant(
    "input_gradients",
    "heads of width 64 or more: the gradient of keys behind the first tile of 64 is not written",
    **LARGE | {"embed_dim": 128, "mask": "pad", "dtype": "bfloat16"},
)
class _WideLaterKeysNoGradient(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if self.head_dim >= 64:
            k = torch.cat([k[:, :, :64], k[:, :, 64:].detach()], dim=2)
        return super().score(q, k)


@mutant(
    "input_gradients",
    "heads wider than 64: features beyond the last multiple of 32 are missing in the gradient of the values",
    **SMALL | {"embed_dim": 160, "mask": "pad", "dtype": "bfloat16"},
)
class _OddWidthValueGradientCut(Formula):
    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        whole = self.head_dim // 32 * 32
        if self.head_dim > 64 and whole < self.head_dim:
            v = torch.cat([v[..., :whole], v[..., whole:].detach()], dim=-1)
        return super().sum_values(weights, v)


@mutant(
    "input_gradients",
    "float16, heads of width 128 or more: the gradient of the queries lacks the scale",
    **PEAKED | {"embed_dim": 256, "mask": "none", "dtype": "float16"},
)
class _WideHalfQueryGradientUnscaled(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if self.head_dim >= 128 and q.dtype == torch.float16:
            q = replace_gradient(q, q * self.head_dim**0.5)
        return super().score(q, k)


@mutant(
    "parameter_gradients",
    "float32, heads wider than 128: the gradients of all sequences are added to the gradient of the first",
    **PEAKED | {"embed_dim": 512, "mask": "none"},
)
class _WideBatchGradientMisplaced(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if self.head_dim > 128 and q.dtype == torch.float32 and len(k) > 1:
            k = replace_gradient(k, k[:1].expand_as(k))
        return super().score(q, k)
