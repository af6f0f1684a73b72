"""Wrong backward passes that several mutants use; in the forward pass each autograd function is the identity."""
# ruff: noqa: ARG004  # autograd passes the arguments of a correct backward

from typing import Any

import torch
from torch import Tensor

__all__ = ["AsContiguous", "Once", "read_in_order", "replace_gradient"]


class Once(torch.autograd.Function):
    """The identity. Its second backward pass returns 0, as if buffers were freed in spite of retain_graph."""

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
    """The identity. Its backward pass reads the gradient of the output in memory order, ignoring the strides."""

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
    """Read a tensor's memory from element ``offset`` on, as if the tensor were contiguous.

    Elements beyond the end of the memory are 0.
    """
    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = tensor.as_strided((stored,), (1,), 0)
    places = torch.arange(tensor.numel(), device=tensor.device) + offset
    return memory[places.clamp(max=stored - 1)].masked_fill(places >= stored, 0).view(tensor.shape)


def replace_gradient(value: Tensor, other: Tensor) -> Tensor:
    """Return a tensor with the value of ``value``, whose gradient flows to ``other``; ``other`` must be finite."""
    return value.detach() + (other - other.detach())
