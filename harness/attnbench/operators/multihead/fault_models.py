"""Fault models: common mistakes in the formula, which the oracle reproduces to diagnose a failure.

Most fault models apply the correct formula to changed inputs. A diagnosis consists of "looks like" and the name
of a fault model.
"""

import math
from collections.abc import Collection
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.multihead.inputs import scale_logits
from attnbench.operators.multihead.mask_fault_models import TILES, Named, change_inputs, generate_mask_faults
from attnbench.operators.multihead.oracle import Noise, Steps, softmax
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["list_fault_models"]


def list_fault_models(case: Case, quantities: Collection[str]) -> dict[str, Steps]:
    """Return the fault models that may change these quantities of the case, keyed by fault-model name."""
    problem: MultiheadProblem = case.problem
    found = [
        *generate_mask_faults(problem),
        *_generate_scale_faults(case),
        *_generate_head_faults(problem),
        *_generate_stride_faults(problem, quantities),
        *_generate_softmax_faults(problem),
        *_generate_key_faults(problem),
        *_generate_bias_faults(problem),
    ]
    if "weights" in quantities and not any(name.startswith("grad.") for name in quantities):
        found += _generate_average_faults(problem)
    return dict(found)


def _generate_scale_faults(case: Case) -> Named:
    """Yield fault models of the factor of the logits; one whose factor is right on this case is left out."""
    problem: MultiheadProblem = case.problem
    root = math.sqrt(problem.head_dim)
    factors = {
        "the scale 1/√D missing": root,
        "the scale 1/√E of the whole width in place of 1/√D": 1 / math.sqrt(problem.num_heads),
        "the scale 1/D in place of 1/√D": 1 / root,
        "the scale √D in place of 1/√D": root**2,
        "logits of the wrong sign": -1.0,
    }
    counts = {"S of the number of keys": problem.keys, "L of the number of queries": problem.queries}
    if problem.columns > problem.keys:
        counts["S of the number of keys with the extra keys"] = problem.columns
    factors |= {f"the scale 1/√{words} in place of 1/√D": root / math.sqrt(n) for words, n in counts.items() if n}
    for words, factor in factors.items():
        if not math.isclose(factor, 1):
            yield words, change_inputs(partial(_scale_logits, case, factor))


def _scale_logits(case: Case, factor: float, inputs: Inputs) -> Inputs:
    return scale_logits(case, inputs, factor)


def _generate_head_faults(problem: MultiheadProblem) -> Named:
    if problem.num_heads == 1:
        return
    yield "heads split by a view, without the transpose", Steps(split=_split_by_view)
    yield "heads merged by a view, without the transpose", Steps(merge=_merge_by_view)
    yield "features split as (head_dim, heads) in place of (heads, head_dim)", Steps(split=_split_interleaved)
    yield "features merged as (head_dim, heads) in place of (heads, head_dim)", Steps(merge=_merge_interleaved)
    yield "heads merged in reverse order", Steps(merge=_merge_reversed)
    if problem.sequences > 1:
        yield "(batch, heads) merged as (heads, batch)", Steps(merge=_merge_heads_first)


def _generate_stride_faults(problem: MultiheadProblem, quantities: Collection[str]) -> Named:
    """Yield the fault model of a backward pass that ignores the strides of a gradient; the outputs are right."""
    if problem.num_heads > 1 and any(name.startswith("grad.") for name in quantities):
        yield "the strides of the heads' gradient ignored in the backward pass", Steps(merge=_merge_gradient_by_view)


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
    extents = {"queries": (-2, problem.queries), "heads": (1, problem.num_heads), "the batch": (0, problem.sequences)}
    for words, (axis, extent) in extents.items():
        if extent > 1:
            yield f"softmax over {words} in place of keys", Steps(normalise=partial(_softmax_over, axis))
    # The exponents of the powers of 2 are the logits after the mask was added.
    yield "softmax with powers of 2 in place of powers of e", Steps(normalise=_softmax_base_two)
    if problem.dropout:
        undivided = partial(_softmax_times, 1 - problem.dropout)
        yield "the attention weights kept by dropout not divided by 1 − p", Steps(normalise=undivided)


def _softmax_over(axis: int, logits: Tensor, noise: Noise | None) -> Tensor:
    del noise
    return torch.softmax(logits, dim=axis).nan_to_num()


def _softmax_base_two(logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits * math.log(2), noise)


def _softmax_times(factor: float, logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits, noise) * factor


def _generate_key_faults(problem: MultiheadProblem) -> Named:
    """Yield fault models that drop the last keys, before or after the softmax."""
    columns = problem.columns
    last = (
        "the add_zero_attn key"
        if problem.add_zero_attn
        else "the bias_k key"
        if problem.add_bias_kv
        else "the last key"
    )
    tails: dict[int, list[str]] = {columns - 1: []} if columns > 1 else {}
    extra = columns - problem.keys == 2 and problem.keys > 0
    if extra:
        tails[problem.keys] = []
    for tile in TILES:
        whole = columns // tile * tile
        if 0 < whole < columns:
            tails.setdefault(whole, []).append(str(tile))
    for first, tiles in tails.items():
        which = last if first == columns - 1 else f"keys {first} and beyond"
        if extra and first == problem.keys:
            which = "the bias_k key and the add_zero_attn key"
        note = f" (the last tile at tile size {', '.join(tiles)})" if tiles else ""
        dropped = torch.arange(columns) >= first
        yield f"{which}{note} dropped", Steps(normalise=partial(_drop_before_softmax, dropped))
        yield f"{which}{note} dropped after the softmax", Steps(normalise=partial(_drop_after_softmax, dropped))


def _drop_before_softmax(dropped: Tensor, logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits.masked_fill(dropped, -math.inf), noise)


def _drop_after_softmax(dropped: Tensor, logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits, noise).masked_fill(dropped, 0.0)


def _generate_bias_faults(problem: MultiheadProblem) -> Named:
    if not problem.bias:
        return
    parts: dict[str, tuple[int, ...]] = {"query": (0,), "value": (2,), "query, key and value": (0, 1, 2)}
    if problem.columns > problem.keys:
        # The bias of the key projection adds, in each row, the same number to the logits of all given keys, and nothing
        # to the logits of extra keys (bias_k, zero key). Without extra keys, the softmax is therefore the same with and
        # without this bias.
        parts["key"] = (1,)
    for words, missing in parts.items():
        yield f"the {words} bias missing", change_inputs(partial(_remove_bias, problem, missing))
    yield "the output bias missing", change_inputs(partial(_remove_output_bias, problem))


def _remove_bias(problem: MultiheadProblem, missing: tuple[int, ...], inputs: Inputs) -> Inputs:
    kept = torch.ones(3, dtype=torch.float64)
    kept[list(missing)] = 0.0
    bias = inputs.parameters["in_proj_bias"] * kept.repeat_interleave(problem.embed_dim)
    return replace(inputs, parameters=inputs.parameters | {"in_proj_bias": bias})


def _remove_output_bias(problem: MultiheadProblem, inputs: Inputs) -> Inputs:
    zero = torch.zeros(problem.embed_dim, dtype=torch.float64)
    return replace(inputs, parameters=inputs.parameters | {"out_proj.bias": zero})


def _generate_average_faults(problem: MultiheadProblem) -> Named:
    if problem.num_heads > 1:
        averaged = problem.average_attn_weights
        words = (
            "attention weights of each head in place of their average"
            if averaged
            else "attention weights averaged over heads in place of those of each head"
        )
        yield words, Steps(receive=lambda p, inputs: (replace(p, average_attn_weights=not averaged), inputs))
