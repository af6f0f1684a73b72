"""Inputs of multi-head attention: drawn, or taken from the real sentence encoder."""

import math

import torch
from torch import Tensor

from attnbench import encoder
from attnbench.cases import Case
from attnbench.inputs import Draw, rounded
from attnbench.interface import Inputs
from attnbench.masks import causal, from_lengths
from attnbench.operators.multihead.problem import LOGIT_STD, MultiheadProblem

__all__ = ["inputs", "missing"]

# Standard deviation of every bias relative to what it is added to: large enough that leaving one out shows.
BIAS_STD = 0.5
# Share of keys that a drawn mask hides from a row. Key 0 stays visible, so that only the ``empty`` masks have rows
# without any key.
HIDDEN_SHARE = 0.4


def missing(case: Case) -> str | None:
    """What this machine lacks for the case, with the remedy, or None."""
    return encoder.missing() if case.problem.encoder_layer is not None else None


def inputs(case: Case) -> Inputs:
    """Seeded inputs of the case on the CPU, rounded to its dtype.

    Parameters are all random, biases too: the reference's own initialisation has zero biases, which hide a missing
    one. Query weights carry the regime's scale, so that the logits have its standard deviation.
    """
    problem: MultiheadProblem = case.problem
    draw = Draw(case.seed)
    if problem.encoder_layer is None:
        parameters, tensors = _parameters(problem, draw), _tokens(problem, draw) | _masks(problem, draw)
    else:
        parameters, tensors = _sentences(problem)
    output_shape = tensors["query"].shape
    rows = (problem.queries, problem.columns)
    batch = () if problem.batch is None else (problem.batch,)
    heads = () if problem.average_attn_weights else (problem.num_heads,)
    drawn = Inputs(
        parameters=parameters,
        tensors=tensors,
        options={
            "need_weights": problem.need_weights,
            "average_attn_weights": problem.average_attn_weights,
            "is_causal": problem.is_causal,
        },
        cotangents={
            "output": draw.normal("cotangent.output", *output_shape),
            "weights": draw.normal("cotangent.weights", *batch, *heads, *rows),
        },
    )
    return rounded(drawn, getattr(torch, case.dtype))


def _parameters(problem: MultiheadProblem, draw: Draw) -> dict[str, Tensor]:
    """Parameters under the reference's names; weights keep the variance of their inputs."""
    embed = problem.embed_dim
    widths = {"q": embed, "k": problem.kdim or embed, "v": problem.vdim or embed}
    logit_std = LOGIT_STD[problem.regime]
    weights = {
        name: draw.normal(f"{name}_proj_weight", embed, width, std=1 / math.sqrt(width))
        for name, width in widths.items()
    }
    weights["q"] *= logit_std
    parameters: dict[str, Tensor] = {}
    if set(widths.values()) == {embed}:
        parameters["in_proj_weight"] = torch.cat(list(weights.values()))
    else:
        parameters |= {f"{name}_proj_weight": weight for name, weight in weights.items()}
    if problem.bias:
        bias = draw.normal("in_proj_bias", 3 * embed, std=BIAS_STD)
        bias[:embed] *= logit_std
        parameters["in_proj_bias"] = bias
        parameters["out_proj.bias"] = draw.normal("out_proj.bias", embed, std=BIAS_STD)
    if problem.add_bias_kv:
        parameters["bias_k"] = draw.normal("bias_k", 1, 1, embed)
        parameters["bias_v"] = draw.normal("bias_v", 1, 1, embed)
    parameters["out_proj.weight"] = draw.normal("out_proj.weight", embed, embed, std=1 / math.sqrt(embed))
    return parameters


def _tokens(problem: MultiheadProblem, draw: Draw) -> dict[str, Tensor]:
    """Query, key and value in the layout that the problem asks for."""
    embed = problem.embed_dim

    def tokens(name: str, length: int, width: int) -> Tensor:
        if problem.batch is None:
            return draw.normal(name, length, width)
        drawn = draw.normal(name, problem.batch, length, width)
        return drawn if problem.batch_first else drawn.transpose(0, 1).contiguous()

    query = tokens("query", problem.queries, embed)
    if problem.self_attention:
        return {"query": query, "key": query, "value": query}
    return {
        "query": query,
        "key": tokens("key", problem.keys, problem.kdim or embed),
        "value": tokens("value", problem.keys, problem.vdim or embed),
    }


def _masks(problem: MultiheadProblem, draw: Draw) -> dict[str, Tensor]:
    """attn_mask and key_padding_mask, in the reference's polarity: true hides."""
    masks: dict[str, Tensor] = {}
    if problem.attention_mask:
        masks["attn_mask"] = _attention_mask(problem, draw)
    if problem.padding_mask:
        mask = _padding_mask(problem, draw)
        masks["key_padding_mask"] = mask[0] if problem.batch is None else mask
    return masks


def _attention_mask(problem: MultiheadProblem, draw: Draw) -> Tensor:
    queries, keys = problem.queries, problem.keys
    if problem.attention_mask == "causal":
        return ~causal(queries, keys)
    kind = str(problem.attention_mask)
    shared = kind.endswith("2d")
    shape = (queries, keys) if shared else ((problem.batch or 1) * problem.num_heads, queries, keys)
    hide = draw.uniform("attn_mask.hidden", *shape) < HIDDEN_SHARE
    hide[..., :1] = False
    if kind.startswith("empty"):
        # The middle row (2d), or that of one head of the last batch element (3d).
        hide[(queries // 2,) if shared else (-1, queries // 2)] = True
    if kind.startswith("float"):
        return draw.normal("attn_mask.values", *shape).masked_fill(hide, float("-inf"))
    return hide


def _padding_mask(problem: MultiheadProblem, draw: Draw) -> Tensor:
    """Mask of shape (batch, keys): the first sequence is full, each other one ends earlier."""
    batch, keys = problem.batch or 1, problem.keys
    lengths = 1 + (draw.uniform("lengths", batch) * (keys - 1)).long()
    lengths[0] = keys if batch > 1 else max(1, keys - 2)
    if problem.padding_mask == "padempty":
        lengths[-1] = 0
    hide = from_lengths(lengths, keys)
    if problem.padding_mask == "padfloat":
        return draw.normal("key_padding_mask.values", batch, keys).masked_fill(hide, float("-inf"))
    return hide


def _sentences(problem: MultiheadProblem) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights of a real encoder layer, and the hidden states of real sentences that reach its attention."""
    layer = encoder.layer_input(problem.encoder_layer or 0, problem.batch or 1, problem.queries)
    tensors = {"query": layer.hidden, "key": layer.hidden, "value": layer.hidden}
    if problem.padding_mask:
        tensors["key_padding_mask"] = layer.hidden_keys
    parameters = dict(layer.parameters)
    return parameters, tensors
