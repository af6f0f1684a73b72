"""From a formula to the quantities of a case: its outputs, and the gradients that the case takes."""

from collections.abc import Callable

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.rounding import Noise

__all__ = ["quantities"]


def quantities(
    case: Case, inputs: Inputs, formula: Callable[[Inputs], dict[str, Tensor]], *, noise: Noise | None = None
) -> dict[str, Tensor]:
    """Outputs of a formula by name, and gradients (``grad.<name>``) of Σ output · cotangent that the case takes.

    ``noise`` is that of the formula; it is also on the gradients as they are handed out.
    """
    if noise and case.autocast:
        # Autocast rounds what comes in, too.
        inputs = inputs.mapped(lambda tensor: noise.on(tensor) if tensor.is_floating_point() else tensor)
    leaves, inputs = _leaves(case, inputs)
    found = formula(inputs)
    if leaves:
        start = next(iter(found.values())).new_zeros(())
        loss = sum(((value * inputs.cotangents[name]).sum() for name, value in found.items()), start)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        found = found | {
            f"grad.{name}": noise.on(gradient) if noise else gradient
            for name, gradient in zip(leaves, gradients, strict=True)
        }
    return {name: value.detach() for name, value in found.items()}


def _leaves(case: Case, inputs: Inputs) -> tuple[dict[str, Tensor], Inputs]:
    """Tensors that the case takes gradients of, by name and each once, and inputs that hold them."""
    if not case.differentiates:
        return {}, inputs
    tracked = inputs.mapped(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()))
    wanted = (tracked.tensors if case.tracks_inputs else {}) | (tracked.parameters if case.tracks_parameters else {})
    leaves: dict[str, Tensor] = {}
    for name, tensor in wanted.items():
        if tensor.requires_grad and not any(tensor is known for known in leaves.values()):
            leaves[name] = tensor
    return leaves, tracked
