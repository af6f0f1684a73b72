"""The oracle: attention on split heads from its formula, and the same formula with rounding at every stage.

    x = scale · q kᵀ                    head h of H takes the keys of head ⌊h · K / H⌋ of K
    x = c · tanh(x / c)                 where there is a soft-cap c
    x = x + bias − slope_h · |p_i − j|  where there is a bias, or ALiBi
    x = −∞                              where a query may not see a key: see ``positions``
    output = softmax over keys of x, times v

A row from which every key is hidden has output 0. It is written apart from every implementation, so that no mistake is
shared, and tested against loops over single numbers.

Sources: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.1; Ainslie et al. 2023 (shared keys),
https://arxiv.org/abs/2305.13245; Press et al. 2022 (ALiBi), https://arxiv.org/abs/2108.12409; Gemma Team 2024
(soft-cap), https://arxiv.org/abs/2408.00118, section 2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.attention_core import positions
from attnbench.operators.attention_core.problem import AttentionCoreProblem
from attnbench.operators.quantities import quantities
from attnbench.operators.rounding import Noise, capped, softmax, weighted_sum

__all__ = ["RIGHT", "Steps", "evaluate", "hidden_rows"]

Given = tuple[AttentionCoreProblem, Inputs]


def _shared(problem: AttentionCoreProblem, tensor: Tensor) -> Tensor:
    """Keys or values of each head of queries: (batch, kv_heads, keys, …) to (batch, heads, keys, …)."""
    return tensor.repeat_interleave(problem.num_heads // problem.key_heads, dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of the formula that known mistakes replace; as they stand here they are right."""

    # Problem and inputs as they are used.
    receive: Callable[[AttentionCoreProblem, Inputs], Given] = lambda *given: given
    share: Callable[[AttentionCoreProblem, Tensor], Tensor] = _shared
    # What the soft-cap comes before: the numbers that are added, the mask, or neither.
    cap_before: Literal["added", "mask", "softmax"] = "added"
    normalise: Callable[[Tensor, Noise | None], Tensor] = softmax


RIGHT = Steps()


def evaluate(case: Case, inputs: Inputs, *, noise: Noise | None = None, steps: Steps = RIGHT) -> dict[str, Tensor]:
    """Quantities by name: the output, and gradients (``grad.<name>``) that the case takes."""
    return quantities(
        case, inputs, lambda given: {"output": _attention(case.problem, given, noise, steps)}, noise=noise
    )


def _attention(problem: AttentionCoreProblem, inputs: Inputs, noise: Noise | None, steps: Steps) -> Tensor:
    def rounded(tensor: Tensor, terms: int = 0) -> Tensor:
        """As it is stored after a step, which is a sum of so many products."""
        return noise(noise.on_sum(tensor, terms)) if noise else tensor

    def at(place: str, logits: Tensor) -> Tensor:
        """Logits at a place where the soft-cap may come."""
        return capped(logits, problem.softcap, noise) if problem.softcap and steps.cap_before == place else logits

    problem, inputs = steps.receive(problem, inputs)
    q, k, v = (inputs.tensors[name] for name in ("query", "key", "value"))
    k, v = (_gathered(steps.share(problem, tensor), noise) for tensor in (k, v))
    logits = at("added", rounded(rounded(q * problem.logit_scale) @ k.mT, problem.head_dim))
    for numbers in _added(problem, inputs):
        logits = rounded(logits + numbers)
    seen = positions.visible(problem, inputs)
    logits = at("softmax", at("mask", logits).masked_fill(~seen, -math.inf))
    weights = steps.normalise(logits, noise)
    return rounded(weighted_sum(weights, v, logits, noise))


def _gathered(tensor: Tensor, noise: Noise | None) -> Tensor:
    """A copy for each head of queries; the gradient that comes back from each is rounded before they are added."""
    return noise.on_gradient(tensor) if noise else tensor


def _added(problem: AttentionCoreProblem, inputs: Inputs) -> list[Tensor]:
    """What is added to logits, each broadcastable to (batch, heads, queries, keys)."""
    found = []
    if problem.bias:
        found.append(inputs.tensors["bias"])
    slopes = inputs.options["alibi_slopes"]
    if slopes is not None:
        tokens = inputs.tensors["query"]
        slope = torch.tensor(slopes, dtype=tokens.dtype)[:, None, None]
        found.append(-slope * positions.distances(problem, inputs).abs())
    return found


def hidden_rows(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Where the output belongs to a query without any visible key; empty where there is none.

    Shape: (batch, heads, queries, 1).
    """
    if case.problem.keys == 0:
        return {}
    rows = ~positions.visible(case.problem, inputs).any(dim=-1, keepdim=True)
    return {"output": rows} if bool(rows.any()) else {}
