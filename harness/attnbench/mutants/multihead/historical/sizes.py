"""Bugs that show at some sizes only: widths, tiles of keys and batches."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnbench.masks import extended
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.multihead.sizes.shapes import MANY
from attnbench.mutants.multihead.sizes.tiles import LATE, find_late_rows

__all__ = ["GRID", "mutant"]

mutant = MultiheadMutants()
# Largest extent of the second and third axis of a CUDA grid, in blocks.
GRID = 65535
# Widths of a head for which pytorch's kernels for few queries exist on MPS.
FEW_QUERY_WIDTHS = (64, 96, 128)
# Fields of a case with heads of width 64.
WIDE: dict[str, Any] = {"embed_dim": 192, "num_heads": 3, "mask": "bool2d", "need_weights": True}


@mutant(
    "forward_parity",
    "the width of a head is fixed at 64: further features are left out (triton-lang/triton#621)",
    **WIDE | {"embed_dim": 256, "num_heads": 2},
)
class _FeaturesBeyond64Ignored(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q[..., :64], k[..., :64])

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        return pad(super().sum_values(weights, v[..., :64]), (0, max(0, self.head_dim - 64)))


@mutant(
    "forward_parity",
    "for up to 8 queries, the last block of 32 keys is read beyond its end (pytorch#169222)",
    **WIDE,
)
class _TailReadBeyondKeys(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, **named: Any) -> Result:
        queries, keys = q.shape[2], k.shape[2]
        few = 0 < queries <= min(8, keys) and self.head_dim in FEW_QUERY_WIDTHS and not is_causal
        missing = -keys % 32 if few else 0
        if missing:
            # The memory behind the keys of a head contains the keys of the next head.
            beyond = torch.arange(missing, device=k.device) % keys
            k, v = (torch.cat([x, x.roll(-1, 1)[:, :, beyond]], dim=2) for x in (k, v))
        output, weights = super().attend(q, k, v, mask=extended(mask, missing), is_causal=is_causal, **named)
        return output, None if weights is None else weights[..., :keys]


@mutant("forward_parity", "for up to 8 queries, the strides of the split queries are ignored (pytorch#163597)", **WIDE)
class _QueryStridesAssumed(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        few = q.shape[2] <= min(8, k.shape[2]) and self.head_dim in FEW_QUERY_WIDTHS
        return super().score(q.transpose(1, 2).reshape(q.shape) if few else q, k)


@mutant(
    "forward_parity",
    "without weights, a row whose first 512 keys are all hidden becomes NaN (pytorch#127055)",
    **LATE,
)
class _HiddenFirstTileNan(Formula):
    tile = 512

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        output, weights = super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)
        if mask is None or need_weights or k.shape[2] <= self.tile:
            return output, weights
        return output.masked_fill(find_late_rows(mask, self.tile), math.nan), weights


@mutant(
    "forward_parity",
    "causal lengths above 4096: NaN where a block of keys lies in a row's future (sgl-project/sglang#22434)",
    batch=1,
    queries=4097,
    keys=4097,
    embed_dim=1,
    num_heads=1,
    mask="causal",
    is_causal=True,
    mode="inference",
)
class _FutureTileNan(Formula):
    # length: longer sequences are computed in blocks. query_block: queries in a block. key_block: keys in a block.
    length, query_block, key_block = 4096, 512, 768

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, **named: Any) -> Result:
        output, weights = super().attend(q, k, v, is_causal=is_causal, **named)
        if not is_causal or q.shape[2] <= self.length:
            return output, weights
        rows = torch.arange(q.shape[2], device=q.device)
        start = rows // self.query_block * self.query_block
        # First key of the last block of keys that starts before the end of the row's block of queries.
        last = (start + self.query_block - 1) // self.key_block * self.key_block
        return output.masked_fill((last > rows)[:, None], math.nan), weights


@mutant(
    "forward_parity",
    "the batch is an axis of the grid: above 65535 sequences the kernel does not run (flashinfer-ai/flashinfer#3125)",
    **MANY,
)
class _BatchBeyondGridUnwritten(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        return super().merge(torch.zeros_like(heads) if len(heads) > GRID else heads)
