"""Mutants of memory layout: kernels that assume contiguous inputs."""
# ruff: noqa: ARG002  # an override keeps the signature of its step

import torch
from torch import Tensor

from attnbench.mutants.autograd import read_in_order
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula

__all__ = ["mutant"]

mutant = MultiheadMutants()
TOKENS = ("query", "key", "value")


class _Misread(Formula):
    """Reads an argument in memory order, ignoring its strides, if ``is_misread`` is true for the argument."""

    arguments: tuple[str, ...] = TOKENS

    def is_misread(self, tensor: Tensor) -> bool:
        raise NotImplementedError

    def find_start(self, tensor: Tensor) -> int:
        return int(tensor.storage_offset())

    def read_arguments(self, given: Arguments) -> Arguments:
        # While a compiler traces, the tensors have no storage to read from.
        if torch.compiler.is_compiling():
            return given
        tensors = {name: given[name] for name in self.arguments if given[name] is not None}
        misread = {
            n: read_in_order(t, self.find_start(t)) for n, t in tensors.items() if t.numel() and self.is_misread(t)
        }
        return given | misread


@mutant("strided_inputs", "every tensor is assumed to be row-major (pytorch#112577)")
class _RowsAssumed(_Misread):
    def is_misread(self, tensor: Tensor) -> bool:
        strides = tensor.stride()
        return list(strides) != sorted(strides, reverse=True)


@mutant("expanded_inputs", "a stride of 0 is not handled (pytorch#191937)")
class _ExpandedMisread(_Misread):
    def is_misread(self, tensor: Tensor) -> bool:
        return 0 in tensor.stride()


@mutant("packed_inputs", "slices of one packed tensor are read from its beginning (huggingface/candle#3703)")
class _OffsetIgnored(_Misread):
    def is_misread(self, tensor: Tensor) -> bool:
        return int(tensor.storage_offset()) > 0

    def find_start(self, tensor: Tensor) -> int:
        return 0


@mutant("strided_inputs", "the strides of the mask are not passed to the kernel (pytorch#128816)", mask="float2d")
class _MaskRowsAssumed(_RowsAssumed):
    arguments = ("attn_mask",)


@mutant("expanded_inputs", "a padding mask that is expanded over the batch is read beyond its end", mask="pad")
class _ExpandedPaddingMisread(_ExpandedMisread):
    arguments = ("key_padding_mask",)
