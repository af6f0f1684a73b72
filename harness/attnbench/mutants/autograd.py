"""Wrong backward passes that several mutants use. The forward passes are the identity."""
# ruff: noqa: ARG004  # autograd defines the arguments of forward and backward

from typing import Any

import torch
from torch import Tensor

__all__ = ["AsContiguous", "Once", "read_in_order", "replace_gradient"]


class Once(torch.autograd.Function):
    """The identity, except that each backward pass after the first returns 0.

    This imitates buffers that are freed in spite of retain_graph.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """Return a view of the tensor."""
        ctx.spent = False
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient in the first backward pass, and zeros afterwards."""
        spent, ctx.spent = ctx.spent, True
        return torch.zeros_like(gradient) if spent else gradient


class AsContiguous(torch.autograd.Function):
    """The identity, except that backward reads the output's gradient ignoring its strides."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """Return a view of the tensor."""
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient, read in memory order from its first element on."""
        if gradient.is_contiguous():
            return gradient
        return read_in_order(gradient, int(gradient.storage_offset()))


def read_in_order(tensor: Tensor, offset: int) -> Tensor:
    """Return a tensor of the same shape, read from memory as if the tensor were contiguous.

    The first element read is element ``offset`` of the tensor's storage. Elements beyond the end
    of the storage are 0.
    """
    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = tensor.as_strided((stored,), (1,), 0)
    places = torch.arange(tensor.numel(), device=tensor.device) + offset
    return memory[places.clamp(max=stored - 1)].masked_fill(places >= stored, 0).view(tensor.shape)


def replace_gradient(value: Tensor, other: Tensor) -> Tensor:
    """Return the values of ``value``; the backward pass sends the gradient to ``other`` instead.

    ``other`` must be finite: its values are subtracted from themselves, and ∞ − ∞ is NaN.
    """
    return value.detach() + (other - other.detach())
