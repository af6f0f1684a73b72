"""The quantities of a case (its outputs and gradients), computed from a formula."""

from collections.abc import Callable

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.rounding import Noise

__all__ = ["compute_quantities"]


def compute_quantities(
    case: Case, inputs: Inputs, formula: Callable[[Inputs], dict[str, Tensor]], *, noise: Noise | None = None
) -> dict[str, Tensor]:
    """Compute a formula's outputs, keyed by name, and, if the case takes gradients, the gradients as ``grad.<name>``.

    The gradients are those of the loss Σ output · cotangent. ``noise`` is the rounding noise of the formula, which is
    also applied to the returned gradients.
    """
    if noise and case.autocast:
        # Autocast rounds the inputs to the case's dtype, so the inputs get noise, too.
        inputs = inputs.map_tensors(lambda tensor: noise.perturb(tensor) if tensor.is_floating_point() else tensor)
    leaves, inputs = _make_leaves(case, inputs)
    found = formula(inputs)
    if leaves:
        start = next(iter(found.values())).new_zeros(())
        loss = sum(((value * inputs.cotangents[name]).sum() for name, value in found.items()), start)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        found = found | {
            f"grad.{name}": noise.perturb(gradient) if noise else gradient
            for name, gradient in zip(leaves, gradients, strict=True)
        }
    return {name: value.detach() for name, value in found.items()}


def _make_leaves(case: Case, inputs: Inputs) -> tuple[dict[str, Tensor], Inputs]:
    """Return the tensors that take gradients, keyed by name, and the inputs that contain these tensors.

    A tensor that is passed as several arguments occurs only once, under the name of the first of these arguments.
    """
    if not case.differentiates:
        return {}, inputs
    tracked = inputs.map_tensors(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()))
    wanted = (tracked.tensors if case.tracks_inputs else {}) | (tracked.parameters if case.tracks_parameters else {})
    leaves: dict[str, Tensor] = {}
    for name, tensor in wanted.items():
        tracks = tensor.requires_grad and name not in case.problem.constant_masks
        if tracks and not any(tensor is leaf for leaf in leaves.values()):
            leaves[name] = tensor
    return leaves, tracked
