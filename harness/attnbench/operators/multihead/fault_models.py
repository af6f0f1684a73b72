"""Known mistakes: the formula as it is often got wrong, so that a failure can be told by its cause.

Most are the right formula on changed inputs. Each is named as it is read after "looks like".
"""

import math
from collections.abc import Collection
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.multihead.inputs import scaled
from attnbench.operators.multihead.mask_fault_models import Named, changed, mask_mistakes
from attnbench.operators.multihead.oracle import Noise, Steps, softmax
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["fault_models"]

# Keys that kernels take at a time.
TILES = (16, 32, 64, 128)


def fault_models(case: Case, quantities: Collection[str]) -> dict[str, Steps]:
    """Mistakes that may show in these quantities of the case, by what a user reads."""
    problem: MultiheadProblem = case.problem
    found = [
        *mask_mistakes(problem),
        *_of_scale(case),
        *_of_heads(problem),
        *_of_softmax(problem),
        *_of_keys(problem),
        *_of_biases(problem),
    ]
    if "weights" in quantities and not any(name.startswith("grad.") for name in quantities):
        found += _of_averages(problem)
    return dict(found)


def _of_scale(case: Case) -> Named:
    problem: MultiheadProblem = case.problem
    root = math.sqrt(problem.head_dim)
    factors = {
        "the scale 1/√D missing": root,
        "the scale 1/√E of the whole width in place of 1/√D": 1 / math.sqrt(problem.num_heads),
        "the scale 1/D in place of 1/√D": 1 / root,
        "the scale √D in place of 1/√D": root**2,
        "logits of the wrong sign": -1.0,
    }
    for words, factor in factors.items():
        if factor != 1:
            yield words, changed(partial(_with_logits, case, factor))


def _with_logits(case: Case, factor: float, inputs: Inputs) -> Inputs:
    return scaled(case, inputs, factor)


def _of_heads(problem: MultiheadProblem) -> Named:
    if problem.num_heads == 1:
        return
    yield "heads split by a view, without the transpose", Steps(split=_split_by_view)
    yield "heads merged by a view, without the transpose", Steps(merge=_merge_by_view)
    yield "features split as (head_dim, heads) in place of (heads, head_dim)", Steps(split=_split_interleaved)
    yield "features merged as (head_dim, heads) in place of (heads, head_dim)", Steps(merge=_merge_interleaved)
    yield "heads merged in reverse order", Steps(merge=_merge_reversed)
    if problem.sequences > 1:
        yield "(batch, heads) merged as (heads, batch)", Steps(merge=_merge_heads_first)


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


def _of_softmax(problem: MultiheadProblem) -> Named:
    extents = {"queries": (-2, problem.queries), "heads": (1, problem.num_heads), "the batch": (0, problem.sequences)}
    for words, (axis, extent) in extents.items():
        if extent > 1:
            yield f"softmax over {words} in place of keys", Steps(normalise=partial(_softmax_over, axis))
    # Of the mask too, where it is one of numbers.
    yield "powers of 2 in place of e", Steps(normalise=_powers_of_two)
    if problem.dropout:
        yield "survivors of dropout not divided by 1 − p", Steps(normalise=partial(_reduced, 1 - problem.dropout))


def _softmax_over(axis: int, logits: Tensor, noise: Noise | None) -> Tensor:
    del noise
    return torch.softmax(logits, dim=axis).nan_to_num()


def _powers_of_two(logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits * math.log(2), noise)


def _reduced(factor: float, logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits, noise) * factor


def _of_keys(problem: MultiheadProblem) -> Named:
    """Keys from some place on are lost, before the softmax or after it."""
    columns = problem.columns
    last = (
        "the zero column" if problem.add_zero_attn else "the learned column" if problem.add_bias_kv else "the last key"
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
            which = "both extra columns"
        note = f" (the last tile of {', '.join(tiles)})" if tiles else ""
        lost = torch.arange(columns) >= first
        yield f"{which}{note} dropped", Steps(normalise=partial(_lost_before, lost))
        yield f"{which}{note} dropped after the softmax", Steps(normalise=partial(_lost_after, lost))


def _lost_before(lost: Tensor, logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits.masked_fill(lost, -math.inf), noise)


def _lost_after(lost: Tensor, logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits, noise).masked_fill(lost, 0.0)


def _of_biases(problem: MultiheadProblem) -> Named:
    if not problem.bias:
        return
    parts: dict[str, tuple[int, ...]] = {"query": (0,), "value": (2,), "query, key and value": (0, 1, 2)}
    if problem.columns > problem.keys:
        # Else the key's adds the same to every logit of a row, and no softmax sees it.
        parts["key"] = (1,)
    for words, missing in parts.items():
        yield f"the {words} bias missing", changed(partial(_without_bias, problem, missing))
    yield "the output bias missing", changed(partial(_without_output_bias, problem))


def _without_bias(problem: MultiheadProblem, missing: tuple[int, ...], inputs: Inputs) -> Inputs:
    kept = torch.ones(3, dtype=torch.float64)
    kept[list(missing)] = 0.0
    bias = inputs.parameters["in_proj_bias"] * kept.repeat_interleave(problem.embed_dim)
    return replace(inputs, parameters=inputs.parameters | {"in_proj_bias": bias})


def _without_output_bias(problem: MultiheadProblem, inputs: Inputs) -> Inputs:
    nothing = torch.zeros(problem.embed_dim, dtype=torch.float64)
    return replace(inputs, parameters=inputs.parameters | {"out_proj.bias": nothing})


def _of_averages(problem: MultiheadProblem) -> Named:
    if problem.num_heads > 1:
        averaged = problem.average_attn_weights
        words = "weights of each head in place of their average" if averaged else "weights averaged over heads"
        yield words, Steps(receive=lambda p, inputs: (replace(p, average_attn_weights=not averaged), inputs))
