"""Mistakes in the core: scale, softmax, masks, dropout, precision and gradients.

Each is the right kernel with one step replaced.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.kernel import from_kernel
from attnbench.masks import additive, softmax_over_visible
from attnbench.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

Step = Callable[..., Tensor]


def _scaled(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return (q * scale) @ k.mT


def _masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return logits
    return logits + (additive(mask, logits.dtype) if mask.dtype == torch.bool else mask)


def _dropped(weights: Tensor, rate: float) -> Tensor:
    return torch.dropout(weights, rate, train=rate > 0)


def _right(**replaced: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """The right kernel with some of its steps replaced."""
    score: Step = replaced.get("score", _scaled)
    hide: Step = replaced.get("hide", _masked)
    normalise: Step = replaced.get("normalise", softmax_over_visible)
    drop: Step = replaced.get("drop", _dropped)
    total: Step = replaced.get("total", torch.matmul)
    told: Step = replaced.get("told", lambda _, dropped: dropped)
    before: Callable[..., tuple[Tensor, Tensor, Tensor]] = replaced.get("before", lambda q, k, v: (q, k, v))

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float, dropout_p: float, need_weights: bool
    ) -> tuple[Tensor, Tensor]:
        del need_weights
        q, k, v = before(q, k, v)
        clean = normalise(hide(score(q, k, scale), mask))
        weights = drop(clean, dropout_p)
        return total(weights, v), told(clean, weights)

    return kernel


def _mutant(name: str, caught_by: str, why: str, **replaced: Any) -> Mutant:
    return Mutant(implementation=from_kernel(_right(**replaced), name=name), caught_by=caught_by, why=why)


def _last_key_dropped(weights: Tensor, values: Tensor) -> Tensor:
    return weights[..., :-1] @ values[..., :-1, :]


def _fill_20(logits: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None or mask.dtype != torch.bool:
        return _masked(logits, mask)
    return logits + torch.where(mask, 0.0, -20.0).to(logits.dtype)


def _fill_smallest(logits: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None or mask.dtype != torch.bool:
        return _masked(logits, mask)
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min)


def _inverted(logits: Tensor, mask: Tensor | None) -> Tensor:
    return _masked(logits, ~mask if mask is not None and mask.dtype == torch.bool else mask)


def _only_boolean(logits: Tensor, mask: Tensor | None) -> Tensor:
    return _masked(logits, mask if mask is None or mask.dtype == torch.bool else mask != 0)


def _causal_off_by_one(logits: Tensor, mask: Tensor | None) -> Tensor:
    """A causal mask is built again, one diagonal too far."""
    queries, keys = logits.shape[-2:]
    causal = torch.ones(queries, keys, dtype=torch.bool, device=logits.device).tril()
    is_causal = (
        mask is not None and mask.dtype == torch.bool and mask.shape == causal.shape and torch.equal(mask, causal)
    )
    return _masked(logits, causal.logical_or(causal.roll(1, -1).tril(1)) if is_causal else mask)


def _not_rescaled(weights: Tensor, rate: float) -> Tensor:
    return _dropped(weights, rate) * (1 - rate)


def _steeper(tensor: Tensor, factor: float) -> Tensor:
    """The same values with gradients ``factor`` times as large."""
    return tensor + (factor - 1) * (tensor - tensor.detach())


MUTANTS = (
    _mutant(
        "scale_missing", "forward_parity", "a fall-back without 1/√D (mlc-ai/mlc-llm#3426)",
        score=lambda q, k, _: q @ k.mT,
    ),
    _mutant(
        "scale_of_the_model", "forward_parity", "√E instead of √(E/H) (juho-lee/set_transformer#18)",
        score=lambda q, k, scale: _scaled(q, k, scale / math.sqrt(q.shape[1])),
    ),
    _mutant(
        "scale_off_by_1_percent", "forward_parity", "a constant rounded by hand",
        score=lambda q, k, scale: _scaled(q, k, 1.01 * scale),
    ),
    _mutant(
        "softmax_over_queries", "forward_parity", "the wrong axis trained to the same loss (labmlai#146)",
        normalise=lambda logits: torch.softmax(logits, dim=-2).nan_to_num(),
    ),
    _mutant("last_key_dropped", "forward_parity", "a tail block left out", total=_last_key_dropped),
    _mutant(
        "weights_in_bfloat16", "forward_parity", "probabilities rounded to a narrower type inside",
        total=lambda weights, values: weights.bfloat16().to(values.dtype) @ values,
    ),
    _mutant("mask_inverted", "forward_parity", "keep and hide confused (hf/transformers#38094)", hide=_inverted),
    _mutant("mask_as_boolean", "forward_parity", "a float mask read as yes or no (pytorch#21518)", hide=_only_boolean),
    _mutant(
        "mask_ignored", "padding_cannot_leak", "masked_fill whose result is discarded (opendilab/DI-engine#333)",
        hide=lambda logits, _: logits,
    ),
    _mutant("mask_fill_20", "padding_cannot_leak", "hidden keys get a small number, not nothing", hide=_fill_20),
    _mutant(
        "empty_rows_uniform", "forward_parity", "the smallest number as fill spreads an empty row evenly",
        hide=_fill_smallest,
    ),
    _mutant("causal_off_by_one", "future_cannot_leak", "each token sees the next one", hide=_causal_off_by_one),
    _mutant(
        "weights_before_dropout", "dropout_is_told_by_weights", "clean weights returned beside a dropped output",
        told=lambda clean, _: clean,
    ),
    _mutant(
        "dropout_in_eval", "dropout_rests_in_eval", "a rate of its own that eval does not reach (pytorch#124464)",
        drop=lambda weights, _: torch.dropout(weights, 0.1, train=True),
    ),
    _mutant("dropout_not_rescaled", "dropout_is_unbiased", "survivors not divided by 1 − p", drop=_not_rescaled),
    _mutant(
        "padding_weight_tiny", "weights_of_padding_are_zero", "an epsilon added against division by zero",
        told=lambda _, dropped: dropped + 1e-9,
    ),
    _mutant(
        "query_gradient_off_by_3_percent", "input_gradients", "a wrong factor in backward alone",
        before=lambda q, k, v: (_steeper(q, 1.03), k, v),
    ),
    _mutant(
        "mask_gradient_cut", "mask_gradients", "a bias kernel whose backward forgets the bias (pytorch#145208)",
        hide=lambda logits, mask: _masked(logits, None if mask is None else mask.detach()),
    ),
    _mutant(
        "weights_averaged_over_keys", "weights_parity", "the wrong tensor handed out as weights",
        told=lambda _, dropped: dropped.mean(dim=-1, keepdim=True).expand_as(dropped),
    ),
)  # fmt: skip
