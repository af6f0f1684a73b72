"""Fault models of projections: biases, exchanged projections, and what becomes of the output after its projection."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from attnbench.interface import FaultModel, Inputs
from attnbench.operators.multihead.mask_fault_models import Named, change_inputs
from attnbench.operators.multihead.oracle import Steps
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["generate_projection_faults"]

# Names of the projections, in the order of ``in_proj_weight``.
PROJECTIONS = ("queries", "keys", "values")


def generate_projection_faults(problem: MultiheadProblem) -> Named:
    """Yield the fault models of the projections before and after the attention."""
    yield from _generate_bias_faults(problem)
    yield from _generate_exchange_faults(problem)
    yield from _generate_output_faults(problem)


def _generate_bias_faults(problem: MultiheadProblem) -> Named:
    if not problem.bias:
        return
    parts: dict[str, tuple[int, ...]] = {"query": (0,), "value": (2,), "input": (0, 1, 2)}
    if problem.columns > problem.keys:
        # The bias of the key projection adds, in each row, the same number to the logits of all given keys, and nothing
        # to the logits of extra keys (bias_k, zero key). Without extra keys, the softmax is therefore the same with and
        # without this bias.
        parts["key"] = (1,)
    for name, missing in parts.items():
        yield FaultModel(name=f"{name}_bias_missing", fault=change_inputs(partial(_remove_bias, problem, missing)))
    yield FaultModel(name="output_bias_missing", fault=change_inputs(partial(_remove_output_bias, problem)))


def _remove_bias(problem: MultiheadProblem, missing: tuple[int, ...], inputs: Inputs) -> Inputs:
    kept = torch.ones(3, dtype=torch.float64)
    kept[list(missing)] = 0.0
    bias = inputs.parameters["in_proj_bias"] * kept.repeat_interleave(problem.embed_dim)
    return replace(inputs, parameters=inputs.parameters | {"in_proj_bias": bias})


def _remove_output_bias(problem: MultiheadProblem, inputs: Inputs) -> Inputs:
    zero = torch.zeros(problem.embed_dim, dtype=torch.float64)
    return replace(inputs, parameters=inputs.parameters | {"out_proj.bias": zero})


def _generate_exchange_faults(problem: MultiheadProblem) -> Named:
    """Yield fault models that exchange arguments or projections, where their widths are equal."""
    widths = (problem.embed_dim, problem.kdim or problem.embed_dim, problem.vdim or problem.embed_dim)
    for pair in ((0, 1), (1, 2)):
        if len({widths[i] for i in pair}) == 1:
            values = {"first": PROJECTIONS[pair[0]], "second": PROJECTIONS[pair[1]]}
            fault = change_inputs(partial(_exchange_projections, pair))
            yield FaultModel(name="projections_exchanged", values=values, fault=fault)
    if widths[1] == widths[2] and not (problem.key_is_value or problem.self_attention):
        yield FaultModel(name="key_and_value_swapped", fault=change_inputs(_swap_arguments))
    yield FaultModel(name="keys_and_values_swapped", fault=change_inputs(_swap_projected))


def _exchange_projections(pair: tuple[int, int], inputs: Inputs) -> Inputs:
    """Exchange the weights and biases of two input projections."""
    order = list(range(3))
    order[pair[0]], order[pair[1]] = order[pair[1]], order[pair[0]]
    parameters = dict(inputs.parameters)
    for name in ("in_proj_weight", "in_proj_bias"):
        if name in parameters:
            parts = parameters[name].chunk(3)
            parameters[name] = torch.cat([parts[i] for i in order])
    if "q_proj_weight" in parameters:
        weights = [parameters[f"{letter}_proj_weight"] for letter in "qkv"]
        parameters |= {f"{letter}_proj_weight": weights[i] for letter, i in zip("qkv", order, strict=True)}
    return replace(inputs, parameters=parameters)


def _swap_arguments(inputs: Inputs) -> Inputs:
    swapped = {"key": inputs.tensors["value"], "value": inputs.tensors["key"]}
    return replace(inputs, tensors={**inputs.tensors, **swapped})


def _swap_projected(inputs: Inputs) -> Inputs:
    """Swap projected keys and values, the extra ones included, by swapping all that they are computed from."""
    swapped = _exchange_projections((1, 2), _swap_arguments(inputs))
    extra = {"bias_k": "bias_v", "bias_v": "bias_k"}
    changed = {name: inputs.parameters[other] for name, other in extra.items() if other in inputs.parameters}
    return replace(swapped, parameters={**swapped.parameters, **changed})


def _generate_output_faults(problem: MultiheadProblem) -> Named:
    yield FaultModel(name="output_projection_missing", fault=change_inputs(partial(_remove_output_projection, problem)))
    yield FaultModel(name="query_added", fault=Steps(finish=torch.add))
    yield FaultModel(name="output_normalised", fault=Steps(finish=lambda output, _: _normalise(output)))
    both = Steps(finish=lambda output, query: _normalise(output + query))
    yield FaultModel(name="query_added_and_normalised", fault=both)


def _normalise(output: Tensor) -> Tensor:
    """Apply LayerNorm as it is constructed: over the features, with weight 1, bias 0 and eps 1e-5."""
    return layer_norm(output, output.shape[-1:])


def _remove_output_projection(problem: MultiheadProblem, inputs: Inputs) -> Inputs:
    identity = torch.eye(problem.embed_dim, dtype=torch.float64)
    removed = _remove_output_bias(problem, inputs) if problem.bias else inputs
    return replace(removed, parameters={**removed.parameters, "out_proj.weight": identity})
