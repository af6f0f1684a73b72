"""Mistakes about memory: kernels that take their inputs for contiguous."""
# ruff: noqa: ARG002  # a step is handed what its right form needs

import torch
from torch import Tensor

from attnbench.mutants.autograd import read_in_order
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula

__all__ = ["mutant"]

mutant = MultiheadMutants()
TOKENS = ("query", "key", "value")


class _Misread(Formula):
    """Reads some arguments in the order of their memory where it misjudges them."""

    arguments: tuple[str, ...] = TOKENS

    def misjudged(self, tensor: Tensor) -> bool:
        raise NotImplementedError

    def first(self, tensor: Tensor) -> int:
        return int(tensor.storage_offset())

    def receive(self, given: Arguments) -> Arguments:
        # Memory has no order for a compiler, which sees tensors without storage.
        if torch.compiler.is_compiling():
            return given
        tensors = {name: given[name] for name in self.arguments if given[name] is not None}
        misread = {n: read_in_order(t, self.first(t)) for n, t in tensors.items() if t.numel() and self.misjudged(t)}
        return given | misread


@mutant("strided_inputs", "every tensor taken for one of rows (pytorch#112577)")
class _RowsAssumed(_Misread):
    def misjudged(self, tensor: Tensor) -> bool:
        strides = tensor.stride()
        return list(strides) != sorted(strides, reverse=True)


@mutant("expanded_inputs", "stride 0 not thought of (pytorch#191937)")
class _ExpandedMisread(_Misread):
    def misjudged(self, tensor: Tensor) -> bool:
        return 0 in tensor.stride()


@mutant("packed_inputs", "slices of one packed tensor read from its beginning (huggingface/candle#3703)")
class _OffsetIgnored(_Misread):
    def misjudged(self, tensor: Tensor) -> bool:
        return int(tensor.storage_offset()) > 0

    def first(self, tensor: Tensor) -> int:
        return 0


@mutant("strided_inputs", "strides of the mask not handed on (pytorch#128816)", mask="float2d")
class _MaskRowsAssumed(_RowsAssumed):
    arguments = ("attn_mask",)


@mutant("expanded_inputs", "a padding mask shared by the batch, read beyond its end", mask="pad")
class _ExpandedPaddingMisread(_ExpandedMisread):
    arguments = ("key_padding_mask",)
