"""Wrong backward passes that several faults use. The forward passes are the identity."""
# ruff: noqa: ARG004  # autograd defines the arguments of forward and backward

from typing import Any

import torch
from torch import Tensor

__all__ = ["GARBAGE", "Unwritten"]

# The number in memory that a backward pass does not write.
GARBAGE = 0.5


class Unwritten(torch.autograd.Function):
    """The identity; the gradient is ``GARBAGE`` where the boolean tensor ``places``, which broadcasts, is true."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, places: Tensor) -> Tensor:
        """Return a view of the tensor."""
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep the places."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient with ``GARBAGE`` at the places."""
        return gradient.masked_fill(ctx.saved_tensors[0], GARBAGE), None
