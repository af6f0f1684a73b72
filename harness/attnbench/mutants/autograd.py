"""Wrong backward passes that mutants share: functions that are the identity in the forward pass."""
# ruff: noqa: ARG004  # autograd hands over what a right one needs

from typing import Any

import torch
from torch import Tensor

__all__ = ["AsContiguous", "Once", "read_in_order", "with_gradient_of"]


class Once(torch.autograd.Function):
    """The identity, whose second backward gives 0: what it saved is freed, whatever retain_graph says."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """What comes in."""
        ctx.spent = False
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """What comes back, the first time."""
        spent, ctx.spent = ctx.spent, True
        return torch.zeros_like(gradient) if spent else gradient


class AsContiguous(torch.autograd.Function):
    """The identity, whose backward reads the cotangent's memory in order, whatever its strides say."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """What comes in."""
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """What lies in memory where what comes back begins."""
        if gradient.is_contiguous():
            return gradient
        return read_in_order(gradient, int(gradient.storage_offset()))


def read_in_order(tensor: Tensor, offset: int) -> Tensor:
    """What a kernel reads from ``offset`` on that takes the tensor for contiguous; beyond its memory: zeros."""
    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = tensor.as_strided((stored,), (1,), 0)
    places = torch.arange(tensor.numel(), device=tensor.device) + offset
    return memory[places.clamp(max=stored - 1)].masked_fill(places >= stored, 0).view(tensor.shape)


def with_gradient_of(value: Tensor, other: Tensor) -> Tensor:
    """The value of one tensor with the gradient of another, which must be finite."""
    return value.detach() + (other - other.detach())
