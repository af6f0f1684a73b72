"""Fault models: common mistakes in the formula, which the oracle reproduces to diagnose a failure.

Most fault models apply the correct formula to changed inputs. ``words.faults`` has the text of each.
"""

import math
from collections.abc import Collection
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import FaultModel, Inputs
from attnbench.operators.dropped_keys import TILES, generate_dropped_keys
from attnbench.operators.multihead.inputs import scale_logits
from attnbench.operators.multihead.mask_fault_models import Named, change_inputs, generate_mask_faults
from attnbench.operators.multihead.oracle import Noise, Steps
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.operators.multihead.projection_fault_models import generate_projection_faults
from attnbench.operators.softmax_faults import generate_softmax_faults

__all__ = ["list_fault_models"]


def list_fault_models(case: Case, quantities: Collection[str]) -> list[FaultModel]:
    """Return the fault models that may change these quantities of the case."""
    problem: MultiheadProblem = case.problem
    found = [
        *generate_mask_faults(problem),
        *_generate_scale_faults(case),
        *_generate_head_faults(problem),
        *_generate_stride_faults(problem, quantities),
        *_generate_softmax_faults(problem),
        *_generate_key_faults(problem),
        *generate_projection_faults(problem),
    ]
    if "weights" in quantities and not any(name.startswith("grad.") for name in quantities):
        found += _generate_average_faults(problem)
    return found


def _generate_scale_faults(case: Case) -> Named:
    """Yield fault models of the factor of the logits; one whose factor is right on this case is left out."""
    problem: MultiheadProblem = case.problem
    root = math.sqrt(problem.head_dim)
    factors = {
        "scale_missing": root,
        "scale_of_width": 1 / math.sqrt(problem.num_heads),
        "scale_of_reciprocal": 1 / root,
        "scale_of_root": root**2,
        "logits_negated": -1.0,
    }
    counts = {"scale_of_keys": problem.keys, "scale_of_queries": problem.queries}
    if problem.columns > problem.keys:
        counts["scale_of_columns"] = problem.columns
    factors |= {name: root / math.sqrt(count) for name, count in counts.items() if count}
    for name, factor in factors.items():
        if not math.isclose(factor, 1):
            yield FaultModel(name=name, fault=change_inputs(partial(_scale_logits, case, factor)), scale=factor)
    if problem.head_dim > 1:
        unscaled = change_inputs(partial(_scale_logits, case, root))
        late = replace(unscaled, reweigh=partial(_multiply_weights, 1 / root))
        yield FaultModel(name="scaled_after_softmax", fault=late)


def _scale_logits(case: Case, factor: float, inputs: Inputs) -> Inputs:
    return scale_logits(case, inputs, factor)


def _generate_head_faults(problem: MultiheadProblem) -> Named:
    if problem.num_heads == 1:
        return
    yield FaultModel(name="heads_split_by_view", fault=Steps(split=_split_by_view))
    yield FaultModel(name="heads_merged_by_view", fault=Steps(merge=_merge_by_view))
    yield FaultModel(name="features_split_interleaved", fault=Steps(split=_split_interleaved))
    yield FaultModel(name="features_merged_interleaved", fault=Steps(merge=_merge_interleaved))
    yield FaultModel(name="heads_merged_reversed", fault=Steps(merge=_merge_reversed))
    if problem.sequences > 1:
        yield FaultModel(name="heads_merged_before_batch", fault=Steps(merge=_merge_heads_first))


def _generate_stride_faults(problem: MultiheadProblem, quantities: Collection[str]) -> Named:
    """Yield the fault model of a backward pass that ignores the strides of a gradient; the outputs are right."""
    if problem.num_heads > 1 and any(name.startswith("grad.") for name in quantities):
        yield FaultModel(name="gradient_strides_ignored", fault=Steps(merge=_merge_gradient_by_view), of_backward=True)


def _merge_gradient_by_view(heads: Tensor) -> Tensor:
    """Merge heads correctly; the backward pass splits the gradient into heads by a view, without the transpose."""
    by_view = _merge_by_view(heads)
    return heads.detach().transpose(1, 2).flatten(2) + (by_view - by_view.detach())


def _split_by_view(problem: MultiheadProblem, features: Tensor) -> Tensor:
    return features.reshape(len(features), problem.num_heads, features.shape[1], problem.head_dim)


def _split_interleaved(problem: MultiheadProblem, features: Tensor) -> Tensor:
    return torch.unflatten(features, -1, (problem.head_dim, problem.num_heads)).permute(0, 3, 1, 2)


def _merge_by_view(heads: Tensor) -> Tensor:
    batch, num_heads, queries, head_dim = heads.shape
    return heads.reshape(batch, queries, num_heads * head_dim)


def _merge_interleaved(heads: Tensor) -> Tensor:
    return heads.permute(0, 2, 3, 1).flatten(2)


def _merge_reversed(heads: Tensor) -> Tensor:
    return heads.flip(1).transpose(1, 2).flatten(2)


def _merge_heads_first(heads: Tensor) -> Tensor:
    return heads.transpose(0, 1).reshape(heads.shape).transpose(1, 2).flatten(2)


def _generate_softmax_faults(problem: MultiheadProblem) -> Named:
    extents = {"queries": (-2, problem.queries), "heads": (1, problem.num_heads), "batch": (0, problem.sequences)}
    for name, (axis, extent) in extents.items():
        if extent > 1:
            yield FaultModel(name=f"softmax_over_{name}", fault=Steps(normalise=partial(_softmax_over, axis)))
    yield from generate_softmax_faults(Steps)
    if problem.dropout:
        undivided = Steps(reweigh=partial(_multiply_weights, 1 - problem.dropout))
        yield FaultModel(name="dropout_undivided", fault=undivided)
        yield FaultModel(name="dropped_weights_renormalised", fault=Steps(drop=_drop_and_renormalise))


def _softmax_over(axis: int, logits: Tensor, noise: Noise | None) -> Tensor:
    del noise
    return torch.softmax(logits, dim=axis).nan_to_num()


def _multiply_weights(factor: float, problem: MultiheadProblem, inputs: Inputs, weights: Tensor) -> Tensor:
    del problem, inputs
    return weights * factor


def _drop_and_renormalise(weights: Tensor, keep: Tensor, rate: float) -> Tensor:
    """Divide the weights that dropout keeps by their sum: the softmax of logits of which some were set to −∞."""
    del rate
    kept = weights * keep
    total = kept.sum(dim=-1, keepdim=True)
    return kept / total.masked_fill(total == 0, 1.0)


def _generate_key_faults(problem: MultiheadProblem) -> Named:
    """Yield fault models that drop the last keys, before or after the softmax."""
    columns = problem.columns
    last = "zero_key" if problem.add_zero_attn else "bias_key" if problem.add_bias_kv else "last_key"
    tails: dict[int, list[int]] = {columns - 1: []} if columns > 1 else {}
    names = {columns - 1: last}
    if columns - problem.keys == 2 and problem.keys > 0:
        tails[problem.keys] = []
        names[problem.keys] = "extra_keys"
    for tile in TILES:
        whole = columns // tile * tile
        if 0 < whole < columns:
            tails.setdefault(whole, []).append(tile)
    named = {first: (names.get(first, "keys"), tiles) for first, tiles in tails.items()}
    yield from generate_dropped_keys(columns, named, Steps)


def _generate_average_faults(problem: MultiheadProblem) -> Named:
    if problem.num_heads > 1:
        averaged = problem.average_attn_weights
        name = "weights_not_averaged" if averaged else "weights_averaged"
        other = Steps(receive=lambda p, inputs: (replace(p, average_attn_weights=not averaged), inputs))
        yield FaultModel(name=name, fault=other)
