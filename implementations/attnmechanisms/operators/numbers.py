"""Seeded random inputs of a mechanism's problem: tokens, parameters and masks."""

import math

from torch import Tensor

from attnbench.interface import Inputs
from attnbench.masks import causal, from_lengths
from attnbench.oracle.inputs import Draw
from attnmechanisms.operators.problem import REGIMES, BlockProblem, MechanismProblem, ProjectedProblem

__all__ = ["draw_inputs"]

# Standard deviation of biases, and of LayerNorm's weight, whose mean is 1. With this value, a check detects an
# implementation that leaves one of these parameters out.
BIAS_STD = 0.5
# Probability that a random mask hides a token. The first token is never hidden.
HIDDEN_SHARE = 0.4
# For each operator, the names and shapes of its parameters. E is the width of the tokens, O the width of the output.
SHAPES: dict[str, dict[str, tuple[str, ...]]] = {
    "raw_self_attention": {},
    "scaled_self_attention": {"w_q": ("E", "O"), "w_k": ("E", "O"), "w_v": ("E", "O")},
    "additive_pooling": {"query": ("1", "E"), "w_q": ("E", "E"), "w_k": ("E", "E"), "w": ("E", "1")},
    "dot_product_pooling": {"query": ("E", "1")},
    "single_head": {"w_q": ("E", "E"), "w_k": ("E", "E"), "w_v": ("E", "E"), "w_out": ("E", "E")},
    "residual_block": {
        "in_proj_weight": ("3E", "E"), "in_proj_bias": ("3E",), "out_proj_weight": ("E", "E"), "out_proj_bias": ("E",),
        "norm_weight": ("E",), "norm_bias": ("E",),
    },
}  # fmt: skip


def draw_inputs(operator: str, problem: MechanismProblem, draw: Draw) -> Inputs:
    """Draw all inputs of a problem, in float64."""
    shape = (problem.sequences, problem.length, problem.width)
    tokens = draw.normal("tokens", *shape, std=REGIMES[problem.regime])
    return Inputs(
        parameters=_draw_parameters(operator, problem, draw),
        tensors={"tokens": tokens} | _draw_masks(problem, draw),
        options={"num_heads": problem.heads} if isinstance(problem, BlockProblem) else {},
    )


def _draw_parameters(operator: str, problem: MechanismProblem, draw: Draw) -> dict[str, Tensor]:
    """Draw parameters; a matrix is scaled so that its product with a token has the variance of the token."""
    width = problem.width
    out_width = problem.out_width if isinstance(problem, ProjectedProblem) else width
    sizes = {"1": 1, "E": width, "3E": 3 * width, "O": out_width}
    drawn = {}
    for name, shape in SHAPES[operator].items():
        std = 1 / math.sqrt(width) if len(shape) > 1 else BIAS_STD
        drawn[name] = draw.normal(name, *(sizes[size] for size in shape), std=std)
    if "norm_weight" in drawn:
        drawn["norm_weight"] += 1
    return drawn


def _draw_masks(problem: MechanismProblem, draw: Draw) -> dict[str, Tensor]:
    """Draw boolean masks. As in ``torch.nn.MultiheadAttention``, true hides a key."""
    masks: dict[str, Tensor] = {}
    batch, length = problem.sequences, problem.length
    if problem.padding_mask == "padholes":
        masks["key_padding_mask"] = _hide_some(draw.uniform("holes", batch, length))
    elif problem.padding_mask:
        lengths = 1 + (draw.uniform("lengths", batch) * (length - 1)).long()
        lengths[0] = length if batch > 1 else max(1, length - 2)
        if problem.padding_mask == "padempty":
            # Hide all tokens of one sequence. If the batch has several sequences, do not choose the
            # last one.
            lengths[(batch - 1) // 2] = 0
        padding = from_lengths(lengths, length)
        masks["key_padding_mask"] = padding.flip(-1) if problem.padding_mask == "padleft" else padding
    if problem.attention_mask == "causal":
        masks["attn_mask"] = causal(length, length)
    elif problem.attention_mask:
        masks["attn_mask"] = _hide_some(draw.uniform("attn_mask", length, length))
    return masks


def _hide_some(drawn: Tensor) -> Tensor:
    """Make a mask that hides some tokens of each row, but never the first token.

    ``drawn`` has uniform numbers from 0 to 1.
    """
    hidden = drawn < HIDDEN_SHARE
    hidden[:, 0] = False
    return hidden
