"""Mutants of memory layout: kernels that assume contiguous inputs."""
# ruff: noqa: ARG002  # an override keeps the arguments of the method that it overrides

import torch
from torch import Tensor

from attnbench.mutants.autograd import read_in_order
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula

__all__ = ["mutant"]

mutant = MultiheadMutants()
TOKENS = ("query", "key", "value")


class _Misread(Formula):
    """Base of mutants that ignore the strides of arguments for which ``is_misread`` is true."""

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


@mutant("strided_inputs", "query, key and value are assumed to be row-major (pytorch#112577)")
class _RowsAssumed(_Misread):
    def is_misread(self, tensor: Tensor) -> bool:
        strides = tensor.stride()
        return list(strides) != sorted(strides, reverse=True)


@mutant("expanded_inputs", "tensors with a stride of 0 are read as if contiguous (pytorch#191937)")
class _ExpandedMisread(_Misread):
    def is_misread(self, tensor: Tensor) -> bool:
        return 0 in tensor.stride()


@mutant(
    "packed_inputs",
    "slices of a packed tensor are read from the tensor's beginning (huggingface/candle#3703)",
)
class _OffsetIgnored(_Misread):
    def is_misread(self, tensor: Tensor) -> bool:
        return int(tensor.storage_offset()) > 0

    def find_start(self, tensor: Tensor) -> int:
        return 0


@mutant("strided_inputs", "the strides of the mask are not passed to the kernel (pytorch#128816)", mask="float2d")
class _MaskRowsAssumed(_RowsAssumed):
    arguments = ("attn_mask",)


@mutant(
    "expanded_inputs",
    "a padding mask expanded over the batch is read beyond the end of its memory",
    mask="pad",
)
class _ExpandedPaddingMisread(_ExpandedMisread):
    arguments = ("key_padding_mask",)
