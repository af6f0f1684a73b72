"""Known mistakes: the formula as it is often got wrong, so that a failure can be told by its cause."""

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

__all__ = ["fault_models"]

Named = Iterator[tuple[str, Steps]]
# Keys that kernels take at a time.
TILES = (16, 32, 64, 128)


def fault_models(case: Case) -> dict[str, Steps]:
    """Mistakes that may show in a case, by what a user reads after "looks like"."""
    problem: AttentionCoreProblem = case.problem
    found = (*_of_scale(problem), *_of_heads(problem), *_of_added(problem), *_of_positions(problem), *_of_keys(problem))
    return dict(found)


def _problem(change: Callable[[AttentionCoreProblem], AttentionCoreProblem]) -> Steps:
    """The right formula of another problem."""
    return Steps(receive=lambda problem, inputs: (change(problem), inputs))


def _inputs(change: Callable[[Inputs], Inputs]) -> Steps:
    """The right formula on other inputs."""
    return Steps(receive=lambda problem, inputs: (problem, change(inputs)))


def _without(part: str, problem: AttentionCoreProblem) -> AttentionCoreProblem:
    """The problem without a part of its mask."""
    mask = "+".join(sorted(problem.parts - {part}, key=MASKS.index)) or "none"
    # What else a regime needs of its mask does not matter to the formula.
    return replace(problem, mask=mask, window=None if part == "window" else problem.window, regime="plain")


def _of_scale(problem: AttentionCoreProblem) -> Named:
    root, own = math.sqrt(problem.head_dim), problem.logit_scale
    scales = {
        "the scale missing": 1.0,
        "the scale 1/√D in place of the one given": 1 / root,
        "the scale 1/√V of the values' width in place of 1/√D": 1 / math.sqrt(problem.value_dim),
        "the scale 1/D in place of 1/√D": 1 / problem.head_dim,
        "the scale squared": own**2,
    }
    for words, scale in scales.items():
        if not math.isclose(scale, own):
            yield words, _problem(partial(replace, scale=scale))
    yield "powers of 2 in place of e", Steps(normalise=lambda logits, noise: softmax(logits * math.log(2), noise))
    if problem.softcap:
        yield "the soft-cap missing", _problem(partial(replace, softcap=0.0))
        if problem.parts & {"bias2d", "bias4d", "alibi"}:
            yield "the soft-cap after what is added to logits", Steps(cap_before="mask")
        yield "the soft-cap after the mask", Steps(cap_before="softmax")


def _of_heads(problem: AttentionCoreProblem) -> Named:
    if 1 < problem.key_heads < problem.num_heads:
        yield "key heads dealt out in turn (h mod K) in place of blocks", Steps(share=_dealt)
        yield "the first key head for all heads", Steps(share=_first)


def _dealt(problem: AttentionCoreProblem, tensor: Tensor) -> Tensor:
    return tensor.repeat(1, problem.num_heads // problem.key_heads, 1, 1)


def _first(problem: AttentionCoreProblem, tensor: Tensor) -> Tensor:
    return tensor[:, :1].expand(-1, problem.num_heads, -1, -1)


def _of_added(problem: AttentionCoreProblem) -> Named:
    if problem.bias:
        yield "the bias ignored", _inputs(partial(_with_bias, 0.0))
        yield "the bias added twice", _inputs(partial(_with_bias, 2.0))
        yield "the bias multiplied by the scale", _inputs(partial(_with_bias, problem.logit_scale))
    if "alibi" in problem.parts:
        factors = {"ALiBi ignored": 0.0, "ALiBi of the wrong sign": -1.0, "ALiBi multiplied by the scale": None}
        for words, factor in factors.items():
            yield words, _inputs(partial(_with_slopes, problem.logit_scale if factor is None else factor))
        if problem.num_heads > 1:
            yield "the slopes of ALiBi in reverse order of heads", _inputs(_reversed_slopes)


def _with_bias(factor: float, inputs: Inputs) -> Inputs:
    bias = inputs.tensors["bias"]
    return replace(inputs, tensors=inputs.tensors | {"bias": factor * bias if factor else torch.zeros_like(bias)})


def _with_slopes(factor: float, inputs: Inputs) -> Inputs:
    slopes = [factor * slope for slope in inputs.options["alibi_slopes"]]
    return replace(inputs, options=inputs.options | {"alibi_slopes": slopes})


def _reversed_slopes(inputs: Inputs) -> Inputs:
    return replace(inputs, options=inputs.options | {"alibi_slopes": inputs.options["alibi_slopes"][::-1]})


def _of_positions(problem: AttentionCoreProblem) -> Named:
    for part, words in (("causal_tl", "causal mask"), ("causal_br", "causal mask"), ("window", "window")):
        if part in problem.parts:
            yield f"the {words} ignored", _problem(partial(_without, part))
    if problem.causal:
        corner = {"top_left": "bottom right", "bottom_right": "top left"}[problem.causal]
        yield f"the causal mask aligned at the {corner}", _problem(_other_corner)
    if problem.window is not None:
        yield "the window one key too wide", _problem(lambda p: replace(p, window=_window(p) + 1, regime="plain"))
        if problem.window:
            yield "the window one key too narrow", _problem(lambda p: replace(p, window=_window(p) - 1))
    if "ragged" in problem.parts:
        yield "key_lengths ignored", _inputs(partial(_with_lengths, None, 0))
        yield "key_lengths one key too long", _inputs(partial(_with_lengths, problem.keys, 1))
        yield "key_lengths one key too short", _inputs(partial(_with_lengths, problem.keys, -1))


def _window(problem: AttentionCoreProblem) -> int:
    return problem.window or 0


def _other_corner(problem: AttentionCoreProblem) -> AttentionCoreProblem:
    corners = {"causal_tl": "causal_br", "causal_br": "causal_tl"}
    mask = "+".join(corners.get(part, part) for part in problem.mask.split("+"))
    return replace(problem, mask=mask, regime="plain")


def _with_lengths(most: int | None, more: int, inputs: Inputs) -> Inputs:
    tensors = dict(inputs.tensors)
    own = tensors.pop("key_lengths")
    return replace(inputs, tensors=tensors if most is None else tensors | {"key_lengths": (own + more).clamp(0, most)})


def _of_keys(problem: AttentionCoreProblem) -> Named:
    """Keys from some place on are lost, before the softmax or after it."""
    tails: dict[int, str] = {problem.keys - 1: "the last key"} if problem.keys > 1 else {}
    for tile in TILES:
        whole = problem.keys // tile * tile
        if 0 < whole < problem.keys:
            tails.setdefault(whole, f"keys {whole} and beyond (the last tile of {tile})")
    for first, words in tails.items():
        lost = torch.arange(problem.keys) >= first
        yield f"{words} dropped", Steps(normalise=partial(_lost_before, lost))
        yield f"{words} dropped after the softmax", Steps(normalise=partial(_lost_after, lost))
    yield "rows without any key spread evenly", Steps(normalise=_evenly)


def _lost_before(lost: Tensor, logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits.masked_fill(lost, -math.inf), noise)


def _lost_after(lost: Tensor, logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits, noise).masked_fill(lost, 0.0)


def _evenly(logits: Tensor, noise: Noise | None) -> Tensor:
    empty = (logits == -math.inf).all(dim=-1, keepdim=True)
    return torch.where(empty, 1 / logits.shape[-1], softmax(logits, noise))
