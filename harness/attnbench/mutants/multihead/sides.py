"""Mutants that assume on which side of a sequence the padding is. Each changes a boolean key_padding_mask."""

from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()
# AT_START: fields of a self-attention case with padding at the start. HOLES: fields of a case with padding at random
# positions.
AT_START: dict[str, Any] = {
    "batch": 3, "queries": 8, "keys": 8, "num_heads": 2, "self_attention": True, "mask": "bool2d+padleft",
    "dtype": "float64", "mode": "inference",
}  # fmt: skip
HOLES: dict[str, Any] = {"queries": 2, "keys": 1040, "mask": "padholes", "dtype": "bfloat16"}


class _Sided(Formula):
    def change(self, padding: Tensor) -> Tensor:
        raise NotImplementedError

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding = named["key_padding_mask"]
        if padding is not None and padding.dtype == torch.bool:
            named["key_padding_mask"] = self.change(padding)
        return super().under_masks(query, key, value, **named)


def _find_run(hidden: Tensor) -> Tensor:
    """Return a mask, true only for the hidden keys at the start of a row, before the row's first visible key."""
    return hidden.long().cumprod(dim=1).bool()


@mutant("forward_parity", "a sequence ends at its first hidden key, so all keys behind padding are hidden", **AT_START)
class _PaddingEndsSequence(_Sided):
    def change(self, padding: Tensor) -> Tensor:
        return padding.long().cumsum(dim=1) > 0


@mutant("forward_parity", "padding is moved to the end of each sequence, but keys are not", **AT_START)
class _PaddingMovedToEnd(_Sided):
    def change(self, padding: Tensor) -> Tensor:
        return padding.long().sort(dim=1).values.bool()


@mutant("padding_cannot_leak", "padding is found at both ends of a sequence, but not between its tokens", **HOLES)
class _PaddingBetweenTokensIgnored(_Sided):
    def change(self, padding: Tensor) -> Tensor:
        return _find_run(padding) | _find_run(padding.flip(1)).flip(1)


@mutant("forward_parity", "only padding at the start of a sequence is found", mask="pad")
class _PaddingOfHeadOnly(_Sided):
    def change(self, padding: Tensor) -> Tensor:
        return _find_run(padding)
