"""Wrong backward passes that several mutants use. The forward passes are the identity."""
# ruff: noqa: ARG004  # autograd defines the arguments of forward and backward

from typing import Any

import torch
from torch import Tensor

from attnbench.masks import softmax_over_visible

__all__ = [
    "GARBAGE", "Accumulating", "AsContiguous", "Once", "Unwritten", "WrongForwardSoftmax", "read_in_order",
    "replace_gradient",
]  # fmt: skip

# The number in memory that a backward pass does not write.
GARBAGE = 0.5


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


BUFFERS: dict[Any, Tensor] = {}


class Accumulating(torch.autograd.Function):
    """The identity; the gradient is added to a buffer that only the forward pass clears."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """Return a view of the tensor, and clear the buffer."""
        ctx.place = (tensor.shape, tensor.dtype, tensor.device)
        BUFFERS[ctx.place] = torch.zeros_like(tensor)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Add the gradient to the buffer, and return the sum."""
        with torch.no_grad():
            return BUFFERS[ctx.place].add_(gradient).clone()


class WrongForwardSoftmax(torch.autograd.Function):
    """Softmax over the last axis; the derivative of forward mode lacks the mean of the tangents."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor) -> Tensor:
        """Return the attention weights."""
        return softmax_over_visible(logits)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # autograd's signature
        """Keep the weights."""
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient of the logits."""
        (shares,) = ctx.saved_tensors
        logits: Tensor = shares * (gradient - (gradient * shares).sum(dim=-1, keepdim=True))
        return logits

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        """Return the tangent of the weights, without the term of the mean."""
        (shares,) = ctx.saved_tensors
        pushed: Tensor = shares * tangent
        return pushed
