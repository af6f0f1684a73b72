"""Inputs of attention on split heads."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.attention_core.problem import EXACT_REGIMES, LOGIT_STD, AttentionCoreProblem
from attnbench.operators.sentence_lengths import draw_sentence_lengths
from attnbench.oracle.inputs import Draw, round_inputs

__all__ = ["draw_inputs", "draw_key_lengths", "scale_logits"]

# Every element of the values of hidden keys, in the regime ``uniform``. It is large, so a check detects an
# implementation that uses hidden keys. The elements of the values of visible keys are −1, 0 or 1, so sums of up to 256
# such elements are exact.
HIDDEN_UNIFORM = 64.0
# Largest element of the values in the regime ``selection``: the elements are integers from −127 to 127. Such integers
# are exact in bfloat16, which has 8 significant bits.
LARGEST_SELECTED = 127
# Every element of the values of hidden keys, in the regime ``zeroleak``. The gradient of an attention weight sums such
# elements, times cotangents, over the features of a head. This sum must be below 65504, the largest number of float16.
HIDDEN_ZEROLEAK = 512.0
# The ALiBi slope of the last head is 2^−LAST_SLOPE.
# Source: Press et al. 2022, https://arxiv.org/abs/2108.12409, section 3.
LAST_SLOPE = 8
# Fraction of the keys at which the bias of a query is minus infinity, if ``bias_hides`` is set.
HIDDEN_BY_BIAS = 0.3
# Smallest batch size at which ``draw_key_lengths`` gives the last sequence no keys.
BATCH_WITH_AN_EMPTY_ONE = 4


def draw_inputs(case: Case) -> Inputs:
    """Draw the seeded inputs of the case on the CPU, rounded to the case's ``given_dtype``.

    The standard deviation of the queries is chosen so that the scaled logits have the standard deviation of the regime
    (``LOGIT_STD``).
    """
    problem: AttentionCoreProblem = case.problem
    draw = Draw(case.seed)
    tensors = _draw_tokens(problem, draw)
    if problem.bias == "bias2d":
        tensors["bias"] = draw.normal("bias", problem.queries, problem.keys)
    elif problem.bias == "bias4d":
        tensors["bias"] = draw.normal("bias", problem.sequences, problem.num_heads, problem.queries, problem.keys)
    if problem.bias_hides:
        tensors["bias"] = tensors["bias"].masked_fill(_draw_hidden_by_bias(problem, draw), -math.inf)
    if "ragged" in problem.parts:
        lengths = draw_key_lengths(problem, draw)
        tensors["key_lengths"] = lengths.int() if problem.int32_lengths else lengths
    if problem.regime in EXACT_REGIMES:
        tensors |= _make_exact_tokens(problem, draw, tensors)
    heads = range(1, problem.num_heads + 1)
    slopes = [2 ** (-LAST_SLOPE * head / problem.num_heads) for head in heads]
    drawn = Inputs(
        parameters={},
        tensors=tensors,
        options={
            "causal": problem.causal,
            "window": problem.window,
            "alibi_slopes": slopes if "alibi" in problem.parts else None,
            "softcap": problem.softcap or None,
            "scale": problem.scale or None,
        },
        cotangents={
            "output": draw.normal(
                "cotangent.output", problem.sequences, problem.num_heads, problem.queries, problem.value_dim
            )
        },
    )
    return round_inputs(drawn, getattr(torch, case.given_dtype))


def scale_logits(inputs: Inputs, factor: float) -> Inputs:
    """Return inputs whose logits are ``factor`` times as large: the queries are multiplied by ``factor``."""
    return replace(inputs, tensors=inputs.tensors | {"query": inputs.tensors["query"] * factor})


def draw_key_lengths(problem: AttentionCoreProblem, draw: Draw) -> Tensor:
    """Draw the number of keys of each sequence.

    In a batch of several sequences, the first sequence has all keys, and every other sequence has a random number of
    keys. If there are at least ``BATCH_WITH_AN_EMPTY_ONE`` sequences, the last sequence has no keys. In the
    regime ``uniform`` the numbers of keys are rounded down to powers of two. With a share of padding, the numbers are
    drawn from the lengths of real sentences instead.

    Shape: returns (batch).
    """
    batch, keys = problem.sequences, problem.keys
    if problem.padding:
        return torch.tensor(draw_sentence_lengths(problem.padding, batch, keys, problem.seed))
    found = (1 + (draw.uniform("lengths", batch) * (keys - 1)).long()).clamp(min=min(1, keys), max=keys)
    found[:1] = keys if batch > 1 else max(min(1, keys), keys - 2)
    if problem.regime == "uniform":
        found = 2 ** found.clamp(min=1).double().log2().long()
    if batch >= BATCH_WITH_AN_EMPTY_ONE:
        found[-1] = 0
    return found


def _draw_hidden_by_bias(problem: AttentionCoreProblem, draw: Draw) -> Tensor:
    """Draw the positions at which the bias is minus infinity: random keys, and all keys of the middle query.

    Shape: returns (queries, keys).
    """
    hidden = draw.uniform("bias.hidden", problem.queries, problem.keys) < HIDDEN_BY_BIAS
    hidden[problem.queries // 2 :][:1] = True
    return hidden


def _draw_tokens(problem: AttentionCoreProblem, draw: Draw) -> dict[str, Tensor]:
    """Draw the tensors ``query``, ``key`` and ``value``.

    Shape: returns query (batch, heads, queries, head_dim), key (batch, kv_heads, keys, head_dim), value (batch,
    kv_heads, keys, head_dim_v).
    """
    batch, keys, width = problem.sequences, problem.keys, problem.head_dim
    std = LOGIT_STD.get(problem.regime, LOGIT_STD["plain"]) / (problem.logit_scale * width**0.5)
    return {
        "query": draw.normal("query", batch, problem.num_heads, problem.queries, width, std=std),
        "key": draw.normal("key", batch, problem.key_heads, keys, width),
        "value": draw.normal("value", batch, problem.key_heads, keys, problem.value_dim),
    }


def _make_exact_tokens(problem: AttentionCoreProblem, draw: Draw, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a regime whose output is exact: ``value`` and, in the regime ``uniform``, also ``query``.

    These tensors replace the random tensors of the same names.
    """
    query, value = tensors["query"], tensors["value"]
    whole = draw.uniform("value.whole", *value.shape)
    if problem.regime == "selection":
        return {"value": (whole * (2 * LARGEST_SELECTED + 1)).floor() - LARGEST_SELECTED}
    lengths = tensors.get("key_lengths", torch.full((problem.sequences,), problem.keys))
    hidden = (torch.arange(problem.keys) >= lengths[:, None])[:, None, :, None]
    if problem.regime == "zeroleak":
        return {"value": torch.zeros_like(value).masked_fill(hidden, HIDDEN_ZEROLEAK)}
    return {
        "query": torch.zeros_like(query),
        "value": ((whole * 3).floor() - 1).masked_fill(hidden, HIDDEN_UNIFORM),
    }
