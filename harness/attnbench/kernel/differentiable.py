"""The parameters of a module that can have gradients.

A module may hold other parameters, such as a counter of calls or an index table of whole numbers. Such a parameter is
state, as a buffer is: nothing computes its gradient, scales it or requires that a call leaves it unchanged.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["can_have_gradient", "find_differentiable", "scale_parameters", "scaled_parameters", "track_parameters"]


def can_have_gradient(tensor: Tensor) -> bool:
    """Whether torch can compute a gradient with respect to a tensor: its elements are real or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def find_differentiable(module: object) -> dict[str, Tensor]:
    """Return the parameters that can have gradients, by name; {} if the module is not a ``torch.nn.Module``."""
    if not isinstance(module, nn.Module):
        return {}
    return {name: parameter for name, parameter in module.named_parameters() if can_have_gradient(parameter)}


def track_parameters(module: nn.Module, *, requires_grad: bool) -> None:
    """Set ``requires_grad`` of every parameter that can have a gradient.

    ``torch.nn.Module.requires_grad_(True)`` raises an exception at the first parameter that cannot have a
    gradient.
    """
    for parameter in find_differentiable(module).values():
        parameter.requires_grad_(requires_grad)


def scale_parameters(module: object, factor: float) -> None:
    """Multiply in place every parameter that can have a gradient.

    A power of two as ``factor`` causes no rounding, except of subnormal numbers.
    """
    with torch.no_grad():
        for parameter in find_differentiable(module).values():
            parameter.mul_(factor)


@contextmanager
def scaled_parameters(module: object, factor: float) -> Iterator[None]:
    """Within this context, every parameter that can have a gradient is multiplied by ``factor``.

    At the end of the context, copies restore the bits of the parameters. Dividing by ``factor`` would not restore a
    subnormal number of float16.
    """
    kept = {name: parameter.detach().clone() for name, parameter in find_differentiable(module).items()}
    scale_parameters(module, factor)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, parameter in find_differentiable(module).items():
                parameter.copy_(kept[name])
