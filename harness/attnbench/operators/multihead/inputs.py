"""Inputs of multi-head attention: drawn, or taken from the real sentence encoder."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.multihead.identity import exact_tokens, identity_parameters
from attnbench.operators.multihead.masks import drawn_masks
from attnbench.operators.multihead.problem import EXACT_MASKS, IDENTITY_REGIMES, LOGIT_STD, MultiheadProblem
from attnbench.oracle import sentence_encoder
from attnbench.oracle.inputs import Draw, rounded

__all__ = ["inputs", "missing", "scaled"]

# Standard deviation of every bias relative to what it is added to: large enough that leaving one out shows.
BIAS_STD = 0.5


def missing(case: Case) -> str | None:
    """What this machine lacks for the case, with the remedy, or None."""
    return sentence_encoder.missing() if case.problem.encoder_layer is not None else None


def inputs(case: Case) -> Inputs:
    """Seeded inputs of the case on the CPU, rounded to the dtype in which it is given.

    Parameters are all random, biases too: the reference's own initialisation has zero biases, which hide a missing
    one. Query weights carry the regime's scale, so that the logits have its standard deviation.
    """
    problem: MultiheadProblem = case.problem
    draw = Draw(case.seed)
    if problem.encoder_layer is not None:
        parameters, tensors = _sentences(problem)
    else:
        projects = problem.regime not in IDENTITY_REGIMES
        parameters = _parameters(problem, draw) if projects else identity_parameters(problem, draw)
        tensors = _tokens(problem, draw) | drawn_masks(problem, draw)
        if problem.regime in EXACT_MASKS:
            tensors |= exact_tokens(problem, draw, tensors)
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
    return rounded(drawn, getattr(torch, case.given_dtype))


def scaled(case: Case, inputs: Inputs, factor: float) -> Inputs:
    """Inputs of which the logits before masks are ``factor`` times as large: the query projection carries it."""
    embed = case.problem.embed_dim
    parameters = dict(inputs.parameters)
    for name in ("in_proj_weight", "q_proj_weight", "in_proj_bias"):
        if name in parameters:
            changed = parameters[name].clone()
            changed[:embed] *= factor
            parameters[name] = changed
    return replace(inputs, parameters=parameters)


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
    key = query if problem.query_is_key else tokens("key", problem.keys, problem.kdim or embed)
    value = key if problem.key_is_value else tokens("value", problem.keys, problem.vdim or embed)
    return {"query": query, "key": key, "value": value}


def _sentences(problem: MultiheadProblem) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights of a real encoder layer, and the hidden states of real sentences that reach its attention."""
    layer = sentence_encoder.layer_input(problem.encoder_layer or 0, problem.sequences, problem.queries)
    tensors = {"query": layer.hidden, "key": layer.hidden, "value": layer.hidden}
    if problem.padding_mask:
        tensors["key_padding_mask"] = layer.hidden_keys
    parameters = dict(layer.parameters)
    return parameters, tensors
