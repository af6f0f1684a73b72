"""Inputs of multi-head attention: random, or from the real sentence encoder."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.multihead.draw_masks import draw_masks
from attnbench.operators.multihead.identity import make_exact_tokens, make_identity_parameters
from attnbench.operators.multihead.problem import EXACT_MASKS, IDENTITY_REGIMES, LOGIT_STD, MultiheadProblem
from attnbench.oracle import sentence_encoder
from attnbench.oracle.inputs import Draw, round_inputs

__all__ = ["describe_missing", "draw_inputs", "scale_logits"]

# Standard deviation of the bias of a projection, relative to the standard deviation of the projection's output without
# bias. It is large, so a check detects a missing bias.
BIAS_STD = 0.5


def describe_missing(case: Case) -> str | None:
    """Return what this machine lacks to run the case and how to get it, or None if it lacks nothing."""
    return sentence_encoder.describe_missing() if case.problem.encoder_layer is not None else None


def draw_inputs(case: Case) -> Inputs:
    """Draw the seeded inputs of the case on the CPU, rounded to the case's ``given_dtype``.

    Biases are drawn, too: the reference initialises biases to zero, and no check would detect that an implementation
    leaves out a bias that is zero. The query projection is scaled so that the logits have the standard deviation of
    the regime (``LOGIT_STD``).
    """
    problem: MultiheadProblem = case.problem
    draw = Draw(case.seed)
    if problem.encoder_layer is not None:
        parameters, tensors = _load_sentences(problem)
    else:
        projects = problem.regime not in IDENTITY_REGIMES
        parameters = _draw_parameters(problem, draw) if projects else make_identity_parameters(problem, draw)
        tensors = _draw_tokens(problem, draw) | draw_masks(problem, draw)
        if problem.regime in EXACT_MASKS:
            tensors |= make_exact_tokens(problem, draw, tensors)
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
    return round_inputs(drawn, getattr(torch, case.given_dtype))


def scale_logits(case: Case, inputs: Inputs, factor: float) -> Inputs:
    """Return inputs whose logits before masks are ``factor`` times as large, by scaling the query projection."""
    embed = case.problem.embed_dim
    parameters = dict(inputs.parameters)
    for name in ("in_proj_weight", "q_proj_weight", "in_proj_bias"):
        if name in parameters:
            multiplied = parameters[name].clone()
            multiplied[:embed] *= factor
            parameters[name] = multiplied
    return replace(inputs, parameters=parameters)


def _draw_parameters(problem: MultiheadProblem, draw: Draw) -> dict[str, Tensor]:
    """Draw the parameters, keyed by their names in the reference.

    The query projection gives the logits the standard deviation of the regime. Every other projection keeps the
    variance of its input.
    """
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


def _draw_tokens(problem: MultiheadProblem, draw: Draw) -> dict[str, Tensor]:
    """Draw query, key and value in the layout of the problem."""
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


def _load_sentences(problem: MultiheadProblem) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Load an attention layer of the real encoder: its parameters, and its input and padding mask for sentences."""
    layer = sentence_encoder.compute_layer_input(problem.encoder_layer or 0, problem.sequences, problem.queries)
    tensors = {"query": layer.hidden, "key": layer.hidden, "value": layer.hidden}
    if problem.padding_mask:
        tensors["key_padding_mask"] = layer.hidden_keys
    parameters = dict(layer.parameters)
    return parameters, tensors
