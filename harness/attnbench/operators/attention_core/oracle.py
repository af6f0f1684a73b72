"""The oracle: the formula of attention on split heads, and the same formula with rounding noise at every step.

    x = scale · q kᵀ                    query head h of H uses key head ⌊h · K / H⌋ of K
    x = c · tanh(x / c)                 if there is a soft-cap c
    x = f(x, batch, head, i, j)         if there is a function f of the logits (``score_mod``)
    x = x + bias − slope_h · |p_i − j|  if there is a bias, or ALiBi
    x = −∞                              where a query may not see a key: see ``positions``
    output = softmax over keys of x, times v;  lse = ln Σ exp x

With sinks, each row has one more logit, sink_h, whose weight is multiplied by no value. Functions, sinks and the
logsumexp occur in calls of ``attnbench.testing`` only.

Query i has the position p_i, and key j has the position j. A fully masked row has output 0. The oracle shares no code
with any implementation, because checks would not detect a mistake in shared code. The tests compare the oracle with
loops over scalars.

Sources: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.1; Ainslie et al. 2023 (shared key heads),
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
from attnbench.operators.quantities import compute_quantities
from attnbench.operators.rounding import Noise, soft_cap, softmax, weighted_sum

__all__ = ["CORRECT_STEPS", "Steps", "evaluate", "find_hidden_rows"]

Given = tuple[AttentionCoreProblem, Inputs]


def _repeat_key_heads(problem: AttentionCoreProblem, tensor: Tensor) -> Tensor:
    """Repeat keys or values for each query head: (batch, kv_heads, keys, …) to (batch, heads, keys, …)."""
    return tensor.repeat_interleave(problem.num_heads // problem.key_heads, dim=1)


def _hide(logits: Tensor, visible: Tensor) -> Tensor:
    return logits.masked_fill(~visible, -math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of the formula that fault models replace; the defaults compute the correct formula."""

    # Changes the problem and the inputs before the formula is evaluated.
    receive: Callable[[AttentionCoreProblem, Inputs], Given] = lambda *given: given
    share: Callable[[AttentionCoreProblem, Tensor], Tensor] = _repeat_key_heads
    # The soft-cap is applied before this step: the addition of bias and ALiBi (``added``), the mask, or the softmax.
    cap_before: Literal["added", "mask", "softmax"] = "added"
    # Hides the keys that a query may not see.
    hide: Callable[[Tensor, Tensor], Tensor] = _hide
    normalise: Callable[[Tensor, Noise | None], Tensor] = softmax
    # Changes the weights. The problem and the inputs are those of the call, not those of ``receive``.
    reweigh: Callable[[AttentionCoreProblem, Inputs, Tensor], Tensor] = lambda _problem, _inputs, weights: weights


CORRECT_STEPS = Steps()


def evaluate(
    case: Case, inputs: Inputs, *, noise: Noise | None = None, steps: Steps = CORRECT_STEPS
) -> dict[str, Tensor]:
    """Compute the quantities: ``output`` and, if the case takes gradients, the gradients ``grad.<name>``."""
    return compute_quantities(case, inputs, lambda given: _attend(case.problem, given, noise, steps), noise=noise)


def _attend(problem: AttentionCoreProblem, inputs: Inputs, noise: Noise | None, steps: Steps) -> dict[str, Tensor]:
    def rounded(tensor: Tensor, terms: int = 0) -> Tensor:
        """Return the result of a step, with noise if ``noise`` is given; each element sums ``terms`` products."""
        return noise(noise.perturb_sum(tensor, terms)) if noise else tensor

    def cap_before(step: str, logits: Tensor) -> Tensor:
        """Return the logits, soft-capped if the soft-cap is applied before ``step``."""
        return soft_cap(logits, problem.softcap, noise) if problem.softcap and steps.cap_before == step else logits

    called = problem, inputs
    problem, inputs = steps.receive(*called)
    q, k, v = (inputs.tensors[name] for name in ("query", "key", "value"))
    k, v = (_round_gradient(steps.share(problem, tensor), noise) for tensor in (k, v))
    logits = cap_before("added", rounded(rounded(q * problem.logit_scale) @ k.mT, problem.head_dim))
    if (change := inputs.options.get("score_mod")) is not None:
        logits = rounded(change(logits, *positions.list_indices(logits.shape)))
    for term in _list_added(problem, inputs):
        logits = rounded(logits + term)
    visible = positions.find_visible(problem, inputs)
    logits = cap_before("softmax", steps.hide(cap_before("mask", logits), visible))
    weights = steps.reweigh(*called, steps.normalise(logits, noise))
    sinks, asks_lse = inputs.tensors.get("sinks"), inputs.options.get("lse")
    if sinks is None and not asks_lse:
        return {"output": rounded(weighted_sum(weights, v, logits, noise))}
    lse = _sum_exponentials(logits)
    if sinks is not None:
        # A further logit takes the share 1 − sigmoid(lse − sink) of each row.
        weights = rounded(weights * (lse - sinks[:, None, None]).sigmoid())
        lse = torch.logaddexp(lse, sinks[:, None, None])
    output = {"output": rounded(weighted_sum(weights, v, logits, noise))}
    return output | {"lse": rounded(lse.squeeze(-1))} if asks_lse else output


def _sum_exponentials(logits: Tensor) -> Tensor:
    """Return ln Σ exp x of each row; minus infinity, without a gradient, in a fully masked row.

    Shape: returns (batch, heads, queries, 1).
    """
    hidden = (logits == -math.inf).all(dim=-1, keepdim=True)
    return logits.masked_fill(hidden, 0.0).logsumexp(dim=-1, keepdim=True).masked_fill(hidden, -math.inf)


def _round_gradient(tensor: Tensor, noise: Noise | None) -> Tensor:
    """Return keys or values that were repeated for every query head; in backward, add noise to their gradient.

    The noise is added before the gradient is summed over the query heads that share a key head.
    """
    return noise.perturb_gradient(tensor) if noise else tensor


def _list_added(problem: AttentionCoreProblem, inputs: Inputs) -> list[Tensor]:
    """Return the terms that are added to logits, each broadcastable to (batch, heads, queries, keys)."""
    found = []
    if problem.bias:
        found.append(inputs.tensors["bias"])
    slopes = inputs.options["alibi_slopes"]
    if slopes is not None:
        tokens = inputs.tensors["query"]
        slope = tokens.new_tensor(slopes)[:, None, None]
        found.append(-slope * positions.compute_distances(problem, inputs).abs())
    return found


def find_hidden_rows(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Return a mask of the fully masked rows, as ``{"output": mask}``; an empty dict without such rows or without keys.

    Shape: the mask is (batch, heads, queries, 1).
    """
    if case.problem.keys == 0:
        return {}
    rows = ~positions.find_visible(case.problem, inputs).any(dim=-1, keepdim=True)
    return {"output": rows} if bool(rows.any()) else {}
