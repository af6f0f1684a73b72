"""Mutants that assume on which side of a sequence the padding is. Each changes a boolean key_padding_mask."""

from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula

__all__ = ["Padded", "find_run", "mutant"]

mutant = MultiheadMutants()
# AT_START: fields of a self-attention case with padding at the start. HOLES: fields of a case with padding at random
# positions.
AT_START: dict[str, Any] = {
    "batch": 3, "queries": 8, "keys": 8, "num_heads": 2, "self_attention": True, "mask": "bool2d+padleft",
    "dtype": "float64", "mode": "inference",
}  # fmt: skip
HOLES: dict[str, Any] = {"queries": 2, "keys": 1040, "mask": "padholes", "dtype": "bfloat16"}


class Padded(Formula):
    """Base of mutants that change a boolean key_padding_mask (batch, keys), which is true at hidden keys."""

    def change(self, padding: Tensor) -> Tensor | None:
        """Return the changed mask."""
        raise NotImplementedError

    def read_padding(self, padding: Tensor) -> Tensor | None:
        """Return the changed mask, or a float mask as it is."""
        return self.change(padding) if padding.dtype == torch.bool else padding


def find_run(hidden: Tensor) -> Tensor:
    """Return a mask, true only for the hidden keys at the start of a row, before the row's first visible key."""
    return hidden.long().cumprod(dim=1).bool()


@mutant("forward_parity", "a sequence ends at its first hidden key, so all keys behind padding are hidden", **AT_START)
class _PaddingEndsSequence(Padded):
    def change(self, padding: Tensor) -> Tensor:
        return padding.long().cumsum(dim=1) > 0


@mutant("forward_parity", "padding is moved to the end of each sequence, but keys are not", **AT_START)
class _PaddingMovedToEnd(Padded):
    def change(self, padding: Tensor) -> Tensor:
        return padding.long().sort(dim=1).values.bool()


@mutant("padding_cannot_leak", "padding is found at both ends of a sequence, but not between its tokens", **HOLES)
class _PaddingBetweenTokensIgnored(Padded):
    def change(self, padding: Tensor) -> Tensor:
        return find_run(padding) | find_run(padding.flip(1)).flip(1)


@mutant("forward_parity", "only padding at the start of a sequence is found", mask="pad")
class _PaddingOfHeadOnly(Padded):
    def change(self, padding: Tensor) -> Tensor:
        return find_run(padding)
