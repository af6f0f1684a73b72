"""Fault models: common mistakes in the formula, which the oracle reproduces to diagnose a failure."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import FaultModel, Inputs
from attnbench.operators.attention_core.oracle import Steps
from attnbench.operators.attention_core.positions import find_visible
from attnbench.operators.attention_core.problem import MASKS, AttentionCoreProblem
from attnbench.operators.dropped_keys import TILES, generate_dropped_keys
from attnbench.operators.rounding import Noise, softmax
from attnbench.operators.softmax_faults import generate_softmax_faults

__all__ = ["list_fault_models"]

Named = Iterator[FaultModel]
# What the parts of a mask that hide keys are called.
HIDING = {"causal_tl": "causal mask", "causal_br": "causal mask", "window": "window", "ragged": "key_lengths"}


def list_fault_models(case: Case) -> list[FaultModel]:
    """Return the fault models that may change the outputs of the case."""
    problem: AttentionCoreProblem = case.problem
    return [
        *_generate_scale_faults(problem),
        *generate_softmax_faults(Steps),
        *_generate_swap_faults(problem),
        *_generate_head_faults(problem),
        *_generate_added_faults(problem),
        *_generate_position_faults(problem),
        *_generate_key_faults(problem),
        *_generate_late_mask_faults(problem),
    ]


def _change_problem(change: Callable[[AttentionCoreProblem], AttentionCoreProblem]) -> Steps:
    """Return the fault model that applies the correct formula to a changed problem."""
    return Steps(receive=lambda problem, inputs: (change(problem), inputs))


def _change_inputs(change: Callable[[Inputs], Inputs]) -> Steps:
    """Return the fault model that applies the correct formula to changed inputs."""
    return Steps(receive=lambda problem, inputs: (problem, change(inputs)))


def _remove_part(part: str, problem: AttentionCoreProblem) -> AttentionCoreProblem:
    """Return the problem without one part of its mask."""
    mask = "+".join(sorted(problem.parts - {part}, key=MASKS.index)) or "none"
    # The regime becomes ``plain``, because a regime with exact outputs may not allow the new mask. The formula does not
    # depend on the regime.
    return problem.change(mask=mask, window=None if part == "window" else problem.window, regime="plain")


def _generate_scale_faults(problem: AttentionCoreProblem) -> Named:
    """Yield fault models of the scale and the soft-cap; a scale that is right is left out."""
    root, correct = math.sqrt(problem.head_dim), problem.logit_scale
    scales = {
        "scale_missing": 1.0,
        "given_scale_ignored": 1 / root,
        "scale_of_heads": 1 / math.sqrt(problem.num_heads * problem.head_dim),
        "scale_of_value_width": 1 / math.sqrt(problem.value_dim),
        "scale_of_reciprocal": 1 / problem.head_dim,
        "scale_squared": correct**2,
        "logits_divided_by_scale": 1 / correct,
    }
    counts = {"scale_of_keys": problem.keys, "scale_of_queries": problem.queries}
    scales |= {name: 1 / math.sqrt(count) for name, count in counts.items() if count}
    for name, scale in scales.items():
        if not math.isclose(scale, correct):
            fault = _change_problem(partial(replace, scale=scale))
            yield FaultModel(name=name, fault=fault, scale=scale / correct if correct else None)
    if not math.isclose(correct, 1):
        late = replace(_change_problem(partial(replace, scale=1.0)), reweigh=partial(_multiply_weights, correct))
        yield FaultModel(name="scaled_after_softmax", fault=late)
    if problem.softcap:
        yield FaultModel(name="softcap_missing", fault=_change_problem(partial(replace, softcap=0.0)))
        if problem.parts & {"bias2d", "bias4d", "alibi"}:
            yield FaultModel(name="softcap_after_bias", fault=Steps(cap_before="mask"))
        yield FaultModel(name="softcap_after_mask", fault=Steps(cap_before="softmax"), of_mask=True)


def _multiply_weights(factor: float, problem: AttentionCoreProblem, inputs: Inputs, weights: Tensor) -> Tensor:
    del problem, inputs
    return weights * factor


def _generate_swap_faults(problem: AttentionCoreProblem) -> Named:
    """Yield fault models that swap two of queries, keys and values, where their shapes are equal."""
    if problem.head_dim == problem.value_dim:
        yield FaultModel(name="keys_and_values_swapped", fault=_change_inputs(partial(_swap, "key", "value")))
    if (problem.queries, problem.num_heads) == (problem.keys, problem.key_heads):
        yield FaultModel(name="queries_and_keys_swapped", fault=_change_inputs(partial(_swap, "query", "key")))


def _swap(one: str, other: str, inputs: Inputs) -> Inputs:
    swapped = {one: inputs.tensors[other], other: inputs.tensors[one]}
    return replace(inputs, tensors={**inputs.tensors, **swapped})


def _generate_head_faults(problem: AttentionCoreProblem) -> Named:
    if 1 < problem.key_heads < problem.num_heads:
        yield FaultModel(name="key_heads_interleaved", fault=Steps(share=_interleave_heads))
        yield FaultModel(name="first_key_head_for_all", fault=Steps(share=_use_first_head))


def _interleave_heads(problem: AttentionCoreProblem, tensor: Tensor) -> Tensor:
    return tensor.repeat(1, problem.num_heads // problem.key_heads, 1, 1)


def _use_first_head(problem: AttentionCoreProblem, tensor: Tensor) -> Tensor:
    return tensor[:, :1].expand(-1, problem.num_heads, -1, -1)


def _generate_added_faults(problem: AttentionCoreProblem) -> Named:
    if problem.bias:
        factors = {"bias_ignored": 0.0, "bias_added_twice": 2.0, "bias_scaled": problem.logit_scale}
        for name, factor in factors.items():
            yield FaultModel(name=name, fault=_change_inputs(partial(_scale_bias, factor)))
    if "alibi" in problem.parts:
        factors = {"alibi_ignored": 0.0, "alibi_negated": -1.0, "alibi_scaled": problem.logit_scale}
        for name, factor in factors.items():
            yield FaultModel(name=name, fault=_change_inputs(partial(_scale_slopes, factor)))
        if problem.num_heads > 1:
            yield FaultModel(name="alibi_slopes_reversed", fault=_change_inputs(_reverse_slopes))


def _scale_bias(factor: float, inputs: Inputs) -> Inputs:
    bias = inputs.tensors["bias"]
    return replace(inputs, tensors=inputs.tensors | {"bias": factor * bias if factor else torch.zeros_like(bias)})


def _scale_slopes(factor: float, inputs: Inputs) -> Inputs:
    slopes = [factor * slope for slope in inputs.options["alibi_slopes"]]
    return replace(inputs, options=inputs.options | {"alibi_slopes": slopes})


def _reverse_slopes(inputs: Inputs) -> Inputs:
    return replace(inputs, options=inputs.options | {"alibi_slopes": inputs.options["alibi_slopes"][::-1]})


def _generate_position_faults(problem: AttentionCoreProblem) -> Named:
    for part, name in (("causal_tl", "causal_mask"), ("causal_br", "causal_mask"), ("window", "window")):
        if part in problem.parts:
            fault = _change_problem(partial(_remove_part, part))
            yield FaultModel(name=f"{name}_ignored", fault=fault, of_mask=part != "window")
    if problem.causal:
        corner = {"top_left": "bottom_right", "bottom_right": "top_left"}[problem.causal]
        yield FaultModel(name=f"causal_mask_at_{corner}", fault=_change_problem(_swap_corner), of_mask=True)
    if problem.window is not None:
        wider = _change_problem(lambda p: replace(p, window=_get_window(p) + 1, regime="plain"))
        yield FaultModel(name="window_too_wide", fault=wider)
        if problem.window:
            narrower = _change_problem(lambda p: replace(p, window=_get_window(p) - 1))
            yield FaultModel(name="window_too_narrow", fault=narrower)
    if "ragged" in problem.parts:
        lengths = {"ignored": (None, 0), "too_long": (problem.keys, 1), "too_short": (problem.keys, -1)}
        for name, changed in lengths.items():
            yield FaultModel(name=f"key_lengths_{name}", fault=_change_inputs(partial(_change_lengths, *changed)))


def _get_window(problem: AttentionCoreProblem) -> int:
    return problem.window or 0


def _swap_corner(problem: AttentionCoreProblem) -> AttentionCoreProblem:
    corners = {"causal_tl": "causal_br", "causal_br": "causal_tl"}
    mask = "+".join(corners.get(part, part) for part in problem.mask.split("+"))
    return problem.change(mask=mask, regime="plain")


def _change_lengths(most: int | None, more: int, inputs: Inputs) -> Inputs:
    tensors = dict(inputs.tensors)
    own = tensors.pop("key_lengths")
    return replace(inputs, tensors=tensors if most is None else tensors | {"key_lengths": (own + more).clamp(0, most)})


def _generate_key_faults(problem: AttentionCoreProblem) -> Named:
    """Yield fault models that drop the last keys, and one that gives uniform weights to fully masked rows."""
    tails: dict[int, tuple[str, Sequence[int]]] = {problem.keys - 1: ("last_key", ())} if problem.keys > 1 else {}
    for tile in TILES:
        whole = problem.keys // tile * tile
        if 0 < whole < problem.keys:
            tails.setdefault(whole, ("keys", (tile,)))
    yield from generate_dropped_keys(problem.keys, tails, Steps)
    yield FaultModel(name="masked_rows_uniform", fault=Steps(normalise=_spread_empty_rows), of_mask=True)


def _generate_late_mask_faults(problem: AttentionCoreProblem) -> Named:
    """Yield fault models that apply the mask, or the bias, to the weights in place of the logits."""
    hiding = list(dict.fromkeys(name for part, name in HIDING.items() if part in problem.parts))
    if hiding:
        late = Steps(hide=lambda logits, _: logits, reweigh=_hide_weights)
        yield FaultModel(name="mask_after_softmax", values={"mask": " and ".join(hiding)}, fault=late, of_mask=True)
    if problem.bias:
        late = replace(_change_inputs(partial(_scale_bias, 0.0)), reweigh=_add_bias)
        yield FaultModel(name="bias_after_softmax", fault=late)


def _hide_weights(problem: AttentionCoreProblem, inputs: Inputs, weights: Tensor) -> Tensor:
    return weights.masked_fill(~find_visible(problem, inputs), 0.0)


def _add_bias(problem: AttentionCoreProblem, inputs: Inputs, weights: Tensor) -> Tensor:
    """Add the bias to the weights; the weight of a key that the bias hides is 0."""
    del problem
    bias = inputs.tensors["bias"]
    hidden = bias.isneginf()
    return weights.masked_fill(hidden, 0.0) + bias.masked_fill(hidden, 0.0)


def _spread_empty_rows(logits: Tensor, noise: Noise | None) -> Tensor:
    empty = (logits == -math.inf).all(dim=-1, keepdim=True)
    return torch.where(empty, 1 / logits.shape[-1], softmax(logits, noise))
