"""The reference, ``torch.nn.MultiheadAttention`` with the parameters of a case, and the yardsticks."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.devices import get_device
from attnbench.interface import Inputs
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["build_reference", "initialise_parameters", "run_yardsticks"]


def build_reference(case: Case, inputs: Inputs) -> nn.MultiheadAttention:
    """Build the reference with the parameters of ``inputs``, in the case's mode.

    The reference has the dtype and the device of the parameters.
    """
    module = _construct(case.problem, inputs.parameters["out_proj.weight"])
    module.load_state_dict(inputs.parameters)
    return module.train(case.training).requires_grad_(case.leaves_parameters_trainable)


def initialise_parameters(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Return the parameters, by name, as the reference's constructor initialises them with the seed of the case."""
    weight = inputs.parameters["out_proj.weight"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        module = _construct(case.problem, torch.empty((), dtype=torch.float64))
    return {name: parameter.detach().to(weight) for name, parameter in module.named_parameters()}


def _construct(problem: MultiheadProblem, like: Tensor) -> nn.MultiheadAttention:
    """Construct the reference of a problem, with the dtype and the device of a tensor."""
    return nn.MultiheadAttention(
        problem.embed_dim,
        problem.num_heads,
        dropout=problem.dropout,
        bias=problem.bias,
        add_bias_kv=problem.add_bias_kv,
        add_zero_attn=problem.add_zero_attn,
        kdim=problem.kdim,
        vdim=problem.vdim,
        batch_first=problem.batch_first,
        device=like.device,
        dtype=like.dtype,
    )


def run_yardsticks(case: Case, inputs: Inputs) -> Iterator[dict[str, Tensor]]:
    """Yield the quantities of both paths of the reference, except a path that does not support the case.

    One path returns attention weights (explicit softmax), and the other path returns none (fused).
    """
    for need_weights in (True, False):
        tracked = inputs.map_tensors(
            lambda t: t.detach().clone().requires_grad_(t.is_floating_point() and case.tracks_inputs)
        )
        for name in case.problem.constant_masks:
            tracked.tensors[name].requires_grad = False
        module = build_reference(case, inputs)
        module.dropout = 0.0
        with _call_mode(case):
            try:
                output, weights = module(**tracked.arguments() | {"need_weights": need_weights})
            except RuntimeError:  # this path of the reference does not support the case
                continue
        quantities = {"output": output} | ({"weights": weights} if weights is not None else {})
        if case.differentiates:
            quantities |= _compute_gradients(case, module, tracked, quantities)
        if not case.problem.need_weights:
            quantities.pop("weights", None)
        yield {name: value.detach() for name, value in quantities.items()}


@contextmanager
def _call_mode(case: Case) -> Iterator[None]:
    autocast = get_device(case.device).autocast(getattr(torch, case.dtype), enabled=case.autocast)
    with warnings.catch_warnings(), torch.set_grad_enabled(case.differentiates), autocast:
        # If one mask is boolean and the other mask is float, the reference warns that this is deprecated, but it
        # computes the correct result.
        warnings.filterwarnings("ignore", message=".*mismatched key_padding_mask and attn_mask.*")
        yield


def _compute_gradients(
    case: Case, module: nn.MultiheadAttention, inputs: Inputs, quantities: dict[str, Tensor]
) -> dict[str, Tensor]:
    leaves = {name: t for name, t in inputs.tensors.items() if t.requires_grad}
    leaves |= {name: p for name, p in module.named_parameters() if p.requires_grad}
    # If the case needs weights, its loss includes the weights, and a path that returns no weights cannot compute the
    # gradients.
    if case.problem.need_weights and "weights" not in quantities:
        return {}
    names = ("output", "weights") if case.problem.need_weights else ("output",)
    loss = sum(((quantities[n] * inputs.cotangents[n]).sum() for n in names), torch.zeros(()))
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {f"grad.{name}": g for name, g in zip(leaves, found, strict=True) if g is not None}
