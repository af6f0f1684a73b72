"""Fault models: common mistakes in the formula, which the oracle reproduces to diagnose a failure."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.attention_core.oracle import Steps
from attnbench.operators.attention_core.problem import MASKS, AttentionCoreProblem
from attnbench.operators.rounding import Noise, softmax

__all__ = ["list_fault_models"]

Named = Iterator[tuple[str, Steps]]
# Common tile sizes of kernels; a tile is a block of keys that a kernel processes together.
TILES = (16, 32, 64, 128)


def list_fault_models(case: Case) -> dict[str, Steps]:
    """Return the fault models that may change the outputs of the case, keyed by fault-model name.

    A diagnosis consists of "looks like" and the name of a fault model.
    """
    problem: AttentionCoreProblem = case.problem
    return dict(
        (
            *_generate_scale_faults(problem),
            *_generate_head_faults(problem),
            *_generate_added_faults(problem),
            *_generate_position_faults(problem),
            *_generate_key_faults(problem),
        )
    )


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
    root, correct = math.sqrt(problem.head_dim), problem.logit_scale
    scales = {
        "the scale missing": 1.0,
        "the scale 1/√D in place of the given scale": 1 / root,
        "the scale 1/√V of the values' width in place of 1/√D": 1 / math.sqrt(problem.value_dim),
        "the scale 1/D in place of 1/√D": 1 / problem.head_dim,
        "the scale squared": correct**2,
    }
    for words, scale in scales.items():
        if not math.isclose(scale, correct):
            yield words, _change_problem(partial(replace, scale=scale))
    yield (
        "softmax with powers of 2 in place of powers of e",
        Steps(normalise=lambda logits, noise: softmax(logits * math.log(2), noise)),
    )
    if problem.softcap:
        yield "the soft-cap missing", _change_problem(partial(replace, softcap=0.0))
        if problem.parts & {"bias2d", "bias4d", "alibi"}:
            yield "the soft-cap applied after the bias or ALiBi", Steps(cap_before="mask")
        yield "the soft-cap applied after the mask", Steps(cap_before="softmax")


def _generate_head_faults(problem: AttentionCoreProblem) -> Named:
    if 1 < problem.key_heads < problem.num_heads:
        yield "query head h with key head h mod K in place of ⌊h·K/H⌋", Steps(share=_interleave_heads)
        yield "the first key head used for all query heads", Steps(share=_use_first_head)


def _interleave_heads(problem: AttentionCoreProblem, tensor: Tensor) -> Tensor:
    return tensor.repeat(1, problem.num_heads // problem.key_heads, 1, 1)


def _use_first_head(problem: AttentionCoreProblem, tensor: Tensor) -> Tensor:
    return tensor[:, :1].expand(-1, problem.num_heads, -1, -1)


def _generate_added_faults(problem: AttentionCoreProblem) -> Named:
    if problem.bias:
        yield "the bias ignored", _change_inputs(partial(_scale_bias, 0.0))
        yield "the bias added twice", _change_inputs(partial(_scale_bias, 2.0))
        yield "the bias multiplied by the scale", _change_inputs(partial(_scale_bias, problem.logit_scale))
    if "alibi" in problem.parts:
        factors = {"ALiBi ignored": 0.0, "ALiBi of the wrong sign": -1.0, "ALiBi multiplied by the scale": None}
        for words, factor in factors.items():
            yield words, _change_inputs(partial(_scale_slopes, problem.logit_scale if factor is None else factor))
        if problem.num_heads > 1:
            yield "the ALiBi slopes assigned to the heads in reverse order", _change_inputs(_reverse_slopes)


def _scale_bias(factor: float, inputs: Inputs) -> Inputs:
    bias = inputs.tensors["bias"]
    return replace(inputs, tensors=inputs.tensors | {"bias": factor * bias if factor else torch.zeros_like(bias)})


def _scale_slopes(factor: float, inputs: Inputs) -> Inputs:
    slopes = [factor * slope for slope in inputs.options["alibi_slopes"]]
    return replace(inputs, options=inputs.options | {"alibi_slopes": slopes})


def _reverse_slopes(inputs: Inputs) -> Inputs:
    return replace(inputs, options=inputs.options | {"alibi_slopes": inputs.options["alibi_slopes"][::-1]})


def _generate_position_faults(problem: AttentionCoreProblem) -> Named:
    for part, words in (("causal_tl", "causal mask"), ("causal_br", "causal mask"), ("window", "window")):
        if part in problem.parts:
            yield f"the {words} ignored", _change_problem(partial(_remove_part, part))
    if problem.causal:
        corner = {"top_left": "bottom right", "bottom_right": "top left"}[problem.causal]
        yield f"the causal mask aligned at the {corner}", _change_problem(_swap_corner)
    if problem.window is not None:
        yield (
            "the window one key too wide",
            _change_problem(lambda p: replace(p, window=_get_window(p) + 1, regime="plain")),
        )
        if problem.window:
            yield "the window one key too narrow", _change_problem(lambda p: replace(p, window=_get_window(p) - 1))
    if "ragged" in problem.parts:
        yield "key_lengths ignored", _change_inputs(partial(_change_lengths, None, 0))
        yield "key_lengths one key too long", _change_inputs(partial(_change_lengths, problem.keys, 1))
        yield "key_lengths one key too short", _change_inputs(partial(_change_lengths, problem.keys, -1))


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
    tails: dict[int, str] = {problem.keys - 1: "the last key"} if problem.keys > 1 else {}
    for tile in TILES:
        whole = problem.keys // tile * tile
        if 0 < whole < problem.keys:
            tails.setdefault(whole, f"keys {whole} and beyond (the last tile at tile size {tile})")
    for first, words in tails.items():
        dropped = torch.arange(problem.keys) >= first
        yield f"{words} dropped", Steps(normalise=partial(_drop_before_softmax, dropped))
        yield f"{words} dropped after the softmax", Steps(normalise=partial(_drop_after_softmax, dropped))
    yield "fully masked rows with uniform weights", Steps(normalise=_spread_empty_rows)


def _drop_before_softmax(dropped: Tensor, logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits.masked_fill(dropped, -math.inf), noise)


def _drop_after_softmax(dropped: Tensor, logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits, noise).masked_fill(dropped, 0.0)


def _spread_empty_rows(logits: Tensor, noise: Noise | None) -> Tensor:
    empty = (logits == -math.inf).all(dim=-1, keepdim=True)
    return torch.where(empty, 1 / logits.shape[-1], softmax(logits, noise))
