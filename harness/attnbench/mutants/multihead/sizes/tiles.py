"""Mutants that are wrong in whole tiles of keys: hidden first tiles, masks that end early, and sentinels for −∞."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.masks import softmax_over_visible
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.softmax import divide_by_sum

__all__ = ["LATE", "find_late_rows", "mutant"]

mutant = MultiheadMutants()
HALF = (torch.float16, torch.bfloat16)
# Fields of a training case with rows that see none of the first 1024 keys.
LATE: dict[str, Any] = {"queries": 5, "keys": 1030, "mask": "window2d", "mode": "train"}


def find_late_rows(mask: Tensor, tile: int) -> Tensor:
    """Return which rows of a mask hide the first ``tile`` keys, but not all keys.

    Shape: (…, queries, keys) to (…, queries, 1).
    """
    hidden = ~mask if mask.dtype == torch.bool else mask == -math.inf
    return hidden[..., :tile].all(dim=-1, keepdim=True) & ~hidden.all(dim=-1, keepdim=True)


class _HiddenTile(Formula):
    """Base of mutants that replace the weights of rows whose first ``tile`` keys are all hidden."""

    tile = 0
    replacement = math.nan
    # Whether the fault occurs in half precision only.
    half_only = False

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        masked = super().apply_mask(logits, mask)
        if mask is None or logits.shape[-1] <= self.tile or (self.half_only and logits.dtype not in HALF):
            return masked
        return masked.masked_fill(find_late_rows(mask, self.tile), self.replacement)


@mutant(
    "forward_parity",
    "a row whose first tile of 128 keys is hidden becomes NaN, by −∞ − (−∞) (pytorch#109517)",
    **LATE,
)
class _HiddenFirst128Nan(_HiddenTile):
    tile = 128


@mutant(
    "forward_parity",
    "in half precision, a row whose first tile of 256 keys is hidden counts as fully masked",
    queries=60,
    keys=300,
    mask="window2d",
    dtype="float16",
)
class _HiddenFirst256Skipped(_HiddenTile):
    tile, replacement, half_only = 256, -math.inf, True


@mutant("forward_parity", "a row whose first tile of 1024 keys is hidden attends to all keys alike", **LATE)
class _HiddenFirst1024Uniform(_HiddenTile):
    tile, replacement = 1024, 0.0


@mutant(
    "forward_parity",
    "a sequence whose first tile of 64 keys is padding becomes NaN",
    queries=5,
    keys=513,
    mask="float3d+padleft",
    dtype="bfloat16",
    mode="inference",
)
class _PaddedFirst64Nan(Formula):
    tile = 64

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        output, weights = super().under_masks(query, key, value, **named)
        padding = named["key_padding_mask"]
        if padding is None or padding.dtype != torch.bool or padding.shape[1] <= self.tile:
            return output, weights
        return output.masked_fill(find_late_rows(~padding, self.tile)[..., None], math.nan), weights


class _MaskEndsEarly(Formula):
    """Base of mutants that ignore the mask ``which`` from key ``end`` on."""

    which, end = "attn_mask", 0

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named[self.which]
        if mask is not None and mask.shape[-1] > self.end:
            # 0 is true nowhere in a boolean mask, and adds nothing in a float mask.
            named[self.which] = torch.cat([mask[..., : self.end], torch.zeros_like(mask[..., self.end :])], dim=-1)
        return super().under_masks(query, key, value, **named)


@mutant(
    "forward_parity",
    "attn_mask is ignored from key 512 on (vllm-project/vllm-ascend#15503)",
    queries=5,
    keys=1025,
    mask="bool2d+padfloat",
    dtype="float16",
    mode="inference",
)
class _AttnMaskEndsAt512(_MaskEndsEarly):
    end = 512


@mutant(
    "padding_cannot_leak",
    "key_padding_mask is ignored from key 1024 on",
    queries=2,
    keys=1040,
    mask="padholes",
    dtype="bfloat16",
)
class _PaddingEndsAt1024(_MaskEndsEarly):
    which, end = "key_padding_mask", 1024


@mutant(
    "attn_mask_cannot_leak",
    "attn_mask is ignored from key 256 on",
    queries=5,
    keys=300,
    mask="bool3d+padholes",
    need_weights=True,
    mode="train",
)
class _AttnMaskEndsAt256(_MaskEndsEarly):
    end = 256


class _Sentinel(Formula):
    """Base of mutants in which the running maximum of a row starts at a finite number in place of −∞."""

    start = 0.0

    def normalise(self, logits: Tensor) -> Tensor:
        if logits.shape[-1] == 0:
            return super().normalise(logits)
        highest = logits.detach().amax(dim=-1, keepdim=True).clamp(min=self.start)
        return divide_by_sum((logits - highest).exp())


@mutant(
    "forward_parity",
    "the running maximum starts at −5e4: rows with lower logits get no weights (flashinfer-ai/flashinfer#4401)",
    batch=3,
    queries=8,
    keys=8,
    num_heads=2,
    self_attention=True,
    mask="lowestrows2d",
    mode="inference",
)
class _MaximumStartsAtMinus5e4(_Sentinel):
    start = -5e4


@mutant(
    "forward_parity",
    "logits are clamped at −3e4: the keys of a row with lower logits get equal weights",
    batch=None,
    queries=8,
    keys=8,
    embed_dim=15,
    num_heads=5,
    self_attention=True,
    batch_first=False,
    need_weights=True,
    mask="lowestrows2d+pad",
    regime="huge",
    mode="sampling",
)
class _LogitsClampedAtMinus3e4(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return softmax_over_visible(torch.where(logits == -math.inf, logits, logits.clamp(min=-3e4)))
