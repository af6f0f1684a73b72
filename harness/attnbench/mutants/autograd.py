"""Functions that change nothing forward, and whose backward is wrong."""
# ruff: noqa: ARG004  # autograd hands over what a right one needs

from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.formula import read_in_order

__all__ = ["AsContiguous", "Once"]


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
