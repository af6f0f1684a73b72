"""Fault models of masks (ignored, inverted, shifted or read in another order) and of fully masked rows."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnbench.interface import FaultModel, Inputs
from attnbench.operators.dropped_keys import TILES
from attnbench.operators.multihead.oracle import Noise, Steps, compute_logits_mask, softmax
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["Named", "change_inputs", "generate_mask_faults"]

Named = Iterator[FaultModel]
Masks = Mapping[str, Tensor | None]


def change_inputs(change: Callable[[Inputs], Inputs]) -> Steps:
    """Return the fault model that applies the correct formula to changed inputs."""
    return Steps(receive=lambda problem, inputs: (problem, change(inputs)))


def _mask_fault(name: str, fault: Steps, **values: str) -> FaultModel:
    return FaultModel(name=name, values=values, fault=fault, of_mask=True)


def generate_mask_faults(problem: MultiheadProblem) -> Named:
    """Yield the fault models of the masks that a problem has."""
    present = [name for name, kind in _get_kinds(problem).items() if kind]
    for name in present:
        yield _mask_fault("mask_ignored", change_inputs(partial(_replace_masks, {name: None})), mask=name)
        if name in problem.additive_masks:
            yield from _generate_additive_faults(problem, name)
        else:
            yield _mask_fault("mask_inverted", change_inputs(partial(_invert, name)), mask=name)
    if len(present) == 2:
        yield _mask_fault("both_masks_ignored", change_inputs(partial(_replace_masks, dict.fromkeys(present))))
        if not problem.additive_masks:
            yield _mask_fault("masks_intersected", Steps(mask=_intersect_masks))
    if present and not problem.additive_masks and (len(present) == 2 or problem.columns > problem.keys):
        yield _mask_fault("combined_masks_inverted", Steps(mask=_invert_combined))
    if problem.has_causal_mask:
        yield from _generate_causal_faults(problem)
    if present:
        late = change_inputs(partial(_replace_masks, dict.fromkeys(present)))
        fault = replace(late, reweigh=_mask_weights)
        yield _mask_fault("mask_after_softmax", fault, mask=" and ".join(present))
        yield from _generate_softmax_faults(problem)
    if present and problem.columns > problem.keys:
        yield _mask_fault("masks_shifted", Steps(mask=_shift))
    yield from _generate_order_faults(problem)
    if "empty" in problem.mask or (problem.attention_mask == "union2d" and problem.padding_mask):
        yield _mask_fault("masked_rows_uniform", Steps(normalise=_spread_empty_rows))
        yield _mask_fault("masked_rows_unmasked", Steps(mask=_unmask_empty_rows))
        yield _mask_fault("masked_rows_nan", Steps(normalise=lambda logits, _: torch.softmax(logits, dim=-1)))


def _generate_additive_faults(problem: MultiheadProblem, name: str) -> Named:
    """Yield fault models of an additive mask."""
    yield _mask_fault("mask_read_as_boolean", change_inputs(partial(_read_as_boolean, name)), mask=name)
    if problem.head_dim > 1:
        scale = 1 / math.sqrt(problem.head_dim)
        yield _mask_fault("mask_scaled", change_inputs(partial(_multiply_mask, name, scale)), mask=name)


def _generate_causal_faults(problem: MultiheadProblem) -> Named:
    """Yield fault models in which the causal mask has a wrong diagonal."""
    visible = torch.ones(problem.queries, problem.keys, dtype=torch.bool)
    diagonals = {
        "causal_mask_sees_next": 1,
        "causal_mask_misses_own": -1,
        "causal_mask_at_bottom_right": problem.keys - problem.queries,
    }
    for name, diagonal in diagonals.items():
        if diagonal:
            mask = {"attn_mask": ~visible.tril(diagonal)}
            yield _mask_fault(name, change_inputs(partial(_replace_masks, mask)))


def _generate_order_faults(problem: MultiheadProblem) -> Named:
    """Yield fault models that apply a mask to the wrong heads or sequences."""
    for_heads = str(problem.attention_mask).endswith("3d")
    if for_heads and problem.num_heads > 1:
        yield _mask_fault("mask_of_first_head", change_inputs(partial(_use_first_head, problem)))
    if problem.num_heads == 1 or problem.sequences == 1:
        return
    if for_heads:
        yield _mask_fault("mask_heads_first", change_inputs(partial(_read_heads_first, problem)))
    if problem.padding_mask:
        yield _mask_fault("padding_heads_first", Steps(mask=_tile_padding))
    if problem.padding_mask == "padfloat":
        # The key_padding_mask of the first sequence hides no key. If the mask were boolean, this fault model would
        # therefore give the same result as the fault model of an ignored mask.
        yield _mask_fault("padding_of_first_sequence", change_inputs(_use_first_sequence))


def _generate_softmax_faults(problem: MultiheadProblem) -> Named:
    """Yield fault models of hidden logits, and of an online softmax whose first tile of keys is hidden from a row."""
    if not problem.additive_masks:
        yield _mask_fault("logits_multiplied_by_mask", Steps(apply_mask=_multiply))
    for tile in TILES:
        if tile < problem.columns:
            for name, weight in (("nan", math.nan), ("zero", 0.0), ("uniform", 1 / problem.columns)):
                fault = Steps(normalise=partial(_replace_late_rows, tile, weight))
                yield FaultModel(name=f"late_rows_{name}", values={"tile": tile}, fault=fault)


def _get_kinds(problem: MultiheadProblem) -> dict[str, str | None]:
    return {"attn_mask": problem.attention_mask, "key_padding_mask": problem.padding_mask}


def _replace_masks(masks: Masks, inputs: Inputs) -> Inputs:
    """Return the inputs with some masks replaced, or removed if the new mask is None."""
    tensors = {**inputs.tensors, **masks}
    return replace(inputs, tensors={name: tensor for name, tensor in tensors.items() if tensor is not None})


def _invert(name: str, inputs: Inputs) -> Inputs:
    return _replace_masks({name: ~inputs.tensors[name]}, inputs)


def _read_as_boolean(name: str, inputs: Inputs) -> Inputs:
    return _replace_masks({name: inputs.tensors[name] == -math.inf}, inputs)


def _multiply_mask(name: str, factor: float, inputs: Inputs) -> Inputs:
    return _replace_masks({name: inputs.tensors[name] * factor}, inputs)


def _read_heads_first(problem: MultiheadProblem, inputs: Inputs) -> Inputs:
    mask = torch.unflatten(inputs.tensors["attn_mask"], 0, (problem.num_heads, problem.sequences))
    return _replace_masks({"attn_mask": mask.transpose(0, 1).flatten(0, 1)}, inputs)


def _use_first_head(problem: MultiheadProblem, inputs: Inputs) -> Inputs:
    first = inputs.tensors["attn_mask"][:: problem.num_heads]
    return _replace_masks({"attn_mask": first.repeat_interleave(problem.num_heads, 0)}, inputs)


def _use_first_sequence(inputs: Inputs) -> Inputs:
    mask = inputs.tensors["key_padding_mask"]
    return _replace_masks({"key_padding_mask": mask[:1].expand_as(mask)}, inputs)


def _invert_combined(problem: MultiheadProblem, inputs: Inputs) -> Tensor | None:
    mask = compute_logits_mask(problem, inputs)
    return None if mask is None else torch.zeros_like(mask).masked_fill(mask == 0, -math.inf)


def _compute_single_mask(problem: MultiheadProblem, inputs: Inputs, name: str) -> Tensor:
    """Compute what the mask ``name`` alone adds to the logits."""
    mask = compute_logits_mask(
        problem, _replace_masks({other: None for other in _get_kinds(problem) if other != name}, inputs)
    )
    return torch.zeros((), dtype=torch.float64) if mask is None else mask


def _intersect_masks(problem: MultiheadProblem, inputs: Inputs) -> Tensor:
    return torch.maximum(*(_compute_single_mask(problem, inputs, name) for name in _get_kinds(problem)))


def _shift(problem: MultiheadProblem, inputs: Inputs) -> Tensor | None:
    mask = compute_logits_mask(problem, inputs)
    return None if mask is None else mask.roll(problem.columns - problem.keys, -1)


def _tile_padding(problem: MultiheadProblem, inputs: Inputs) -> Tensor:
    """Compute the logits mask in which head h of sequence b has the padding of sequence (b · heads + h) mod batch."""
    attention, padding = (_compute_single_mask(problem, inputs, name) for name in _get_kinds(problem))
    shape = (problem.sequences, problem.num_heads, 1, problem.columns)
    return attention + padding.repeat(problem.num_heads, 1, 1, 1).reshape(shape)


def _unmask_empty_rows(problem: MultiheadProblem, inputs: Inputs) -> Tensor | None:
    mask = compute_logits_mask(problem, inputs)
    return None if mask is None else mask.masked_fill((mask == -math.inf).all(dim=-1, keepdim=True), 0.0)


def _mask_weights(problem: MultiheadProblem, inputs: Inputs, weights: Tensor) -> Tensor:
    """Set the weights of hidden keys to 0, and add what the masks add to other logits."""
    mask = compute_logits_mask(problem, inputs)
    if mask is None:
        return weights
    hidden = mask == -math.inf
    return weights.masked_fill(hidden, 0.0) + mask.masked_fill(hidden, 0.0)


def _multiply(logits: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask == -math.inf, 0.0, logits)


def _replace_late_rows(tile: int, weight: float, logits: Tensor, noise: Noise | None) -> Tensor:
    """Compute attention weights; a row that sees only keys after the first ``tile`` keys has ``weight`` everywhere."""
    visible = logits != -math.inf
    late = visible.any(dim=-1, keepdim=True) & ~visible[..., :tile].any(dim=-1, keepdim=True)
    return softmax(logits, noise).masked_fill(late, weight)


def _spread_empty_rows(logits: Tensor, noise: Noise | None) -> Tensor:
    empty = (logits == -math.inf).all(dim=-1, keepdim=True)
    return torch.where(empty, 1 / logits.shape[-1], softmax(logits, noise))
