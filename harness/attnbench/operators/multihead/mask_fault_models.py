"""Known mistakes of masks: dropped, turned round, shifted, or read in another order; and rows without any key."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnbench.interface import Inputs
from attnbench.operators.multihead.oracle import Noise, Steps, logits_mask, softmax
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["Named", "changed", "mask_mistakes"]

# What a user reads, and how the formula makes the mistake.
Named = Iterator[tuple[str, Steps]]
Masks = Mapping[str, Tensor | None]


def changed(change: Callable[[Inputs], Inputs]) -> Steps:
    """The right formula on changed inputs."""
    return Steps(receive=lambda problem, inputs: (problem, change(inputs)))


def mask_mistakes(problem: MultiheadProblem) -> Named:
    """Mistakes of the masks that a problem has."""
    present = [name for name, kind in _kinds(problem).items() if kind]
    for name in present:
        yield f"the {name} ignored", changed(partial(_with, {name: None}))
        if name in problem.additive_masks:
            yield f"the {name} read as a boolean one", changed(partial(_as_boolean, name))
        else:
            yield f"the {name} inverted", changed(partial(_inverted, name))
    if len(present) == 2:
        yield "both masks ignored", changed(partial(_with, dict.fromkeys(present)))
        if not problem.additive_masks:
            yield "keys hidden only where both masks hide them", Steps(mask=_where_both_hide)
    if present and not problem.additive_masks and (len(present) == 2 or problem.columns > problem.keys):
        yield "the masks inverted after they were joined", Steps(mask=_joined_and_inverted)
    if problem.attention_mask == "causal":
        yield from _of_causal_mask(problem)
    if present and problem.columns > problem.keys:
        yield "masks shifted by the extra columns", Steps(mask=_shifted)
    yield from _of_order(problem)
    if "empty" in problem.mask or (problem.attention_mask == "union2d" and problem.padding_mask):
        yield "rows without any key spread evenly", Steps(normalise=_evenly)
        yield "rows without any key left unmasked", Steps(mask=_unmasked_where_empty)
        yield "rows without any key NaN", Steps(normalise=lambda logits, _: torch.softmax(logits, dim=-1))


def _of_causal_mask(problem: MultiheadProblem) -> Named:
    """Its diagonal is elsewhere."""
    visible = torch.ones(problem.queries, problem.keys, dtype=torch.bool)
    diagonals = {
        "the causal mask off by one (a query sees the next key)": 1,
        "the causal mask off by one (a query misses its own key)": -1,
        "the causal mask aligned at the bottom right": problem.keys - problem.queries,
    }
    for words, diagonal in diagonals.items():
        if diagonal:
            yield words, changed(partial(_with, {"attn_mask": ~visible.tril(diagonal)}))


def _of_order(problem: MultiheadProblem) -> Named:
    """They reach other heads or sequences than they were made for."""
    for_heads = str(problem.attention_mask).endswith("3d")
    if for_heads and problem.num_heads > 1:
        yield "the attn_mask of the first head for all heads", changed(partial(_of_first_head, problem))
    if problem.num_heads == 1 or problem.sequences == 1:
        return
    if for_heads:
        yield "the attn_mask read as (heads, batch) in place of (batch, heads)", changed(partial(_heads_first, problem))
    if problem.padding_mask:
        yield "the key_padding_mask repeated as (heads, batch) in place of (batch, heads)", Steps(mask=_padding_tiled)
    if problem.padding_mask == "padfloat":
        # That of the first sequence hides nothing: without numbers it is as if there were none.
        yield "the key_padding_mask of the first sequence for all", changed(_of_first_sequence)


def _kinds(problem: MultiheadProblem) -> dict[str, str | None]:
    return {"attn_mask": problem.attention_mask, "key_padding_mask": problem.padding_mask}


def _with(masks: Masks, inputs: Inputs) -> Inputs:
    """Inputs with other masks, or without them where they are None."""
    tensors = {**inputs.tensors, **masks}
    return replace(inputs, tensors={name: tensor for name, tensor in tensors.items() if tensor is not None})


def _inverted(name: str, inputs: Inputs) -> Inputs:
    return _with({name: ~inputs.tensors[name]}, inputs)


def _as_boolean(name: str, inputs: Inputs) -> Inputs:
    return _with({name: inputs.tensors[name] == -math.inf}, inputs)


def _heads_first(problem: MultiheadProblem, inputs: Inputs) -> Inputs:
    mask = torch.unflatten(inputs.tensors["attn_mask"], 0, (problem.num_heads, problem.sequences))
    return _with({"attn_mask": mask.transpose(0, 1).flatten(0, 1)}, inputs)


def _of_first_head(problem: MultiheadProblem, inputs: Inputs) -> Inputs:
    first = inputs.tensors["attn_mask"][:: problem.num_heads]
    return _with({"attn_mask": first.repeat_interleave(problem.num_heads, 0)}, inputs)


def _of_first_sequence(inputs: Inputs) -> Inputs:
    mask = inputs.tensors["key_padding_mask"]
    return _with({"key_padding_mask": mask[:1].expand_as(mask)}, inputs)


def _joined_and_inverted(problem: MultiheadProblem, inputs: Inputs) -> Tensor | None:
    mask = logits_mask(problem, inputs)
    return None if mask is None else torch.zeros_like(mask).masked_fill(mask == 0, -math.inf)


def _alone(problem: MultiheadProblem, inputs: Inputs, name: str) -> Tensor:
    """What one of the masks adds to the logits."""
    mask = logits_mask(problem, _with({other: None for other in _kinds(problem) if other != name}, inputs))
    return torch.zeros((), dtype=torch.float64) if mask is None else mask


def _where_both_hide(problem: MultiheadProblem, inputs: Inputs) -> Tensor:
    return torch.maximum(*(_alone(problem, inputs, name) for name in _kinds(problem)))


def _shifted(problem: MultiheadProblem, inputs: Inputs) -> Tensor | None:
    mask = logits_mask(problem, inputs)
    return None if mask is None else mask.roll(problem.columns - problem.keys, -1)


def _padding_tiled(problem: MultiheadProblem, inputs: Inputs) -> Tensor:
    """Row b · heads + h takes the mask of sequence (b · heads + h) mod batch."""
    attention, padding = (_alone(problem, inputs, name) for name in _kinds(problem))
    shape = (problem.sequences, problem.num_heads, 1, problem.columns)
    return attention + padding.repeat(problem.num_heads, 1, 1, 1).reshape(shape)


def _unmasked_where_empty(problem: MultiheadProblem, inputs: Inputs) -> Tensor | None:
    mask = logits_mask(problem, inputs)
    return None if mask is None else mask.masked_fill((mask == -math.inf).all(dim=-1, keepdim=True), 0.0)


def _evenly(logits: Tensor, noise: Noise | None) -> Tensor:
    empty = (logits == -math.inf).all(dim=-1, keepdim=True)
    return torch.where(empty, 1 / logits.shape[-1], softmax(logits, noise))
