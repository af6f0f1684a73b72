"""The reference (attention on split heads in a few lines of torch) and the yardsticks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.masks import positional, softmax_over_visible
from attnbench.operators.attention_core.oracle import evaluate
from attnbench.operators.quantities import compute_quantities

__all__ = ["CoreReference", "run_yardsticks"]

# Arguments of the reference that are not tensors.
OPTIONS = ("causal", "window", "alibi_slopes", "softcap", "scale")


class CoreReference(nn.Module):
    """Attention on split heads, computed step by step in the dtype of the inputs."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        bias: Tensor | None = None,
        key_lengths: Tensor | None = None,
        causal: str | None = None,
        window: int | None = None,
        alibi_slopes: Sequence[float] | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        """Compute the output (batch, heads, queries, head_dim_v).

        ``visible`` is any boolean mask, true where a query may see a key; calls of ``attnbench.testing`` have it.

        Shape: query (batch, heads, queries, head_dim), key (batch, kv_heads, keys, head_dim), value (batch, kv_heads,
        keys, head_dim_v), bias broadcastable to (batch, heads, queries, keys), key_lengths (batch).
        """
        shared = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(shared, dim=1) for tensor in (key, value))
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        logits = (query * scale) @ key.mT
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        mask = _make_mask(
            query, key, bias=bias, key_lengths=key_lengths, causal=causal, window=window, slopes=alibi_slopes,
            visible=visible,
        )  # fmt: skip
        if mask is not None:
            logits = logits + mask
        return softmax_over_visible(logits) @ value


def _make_mask(
    query: Tensor,
    key: Tensor,
    *,
    bias: Tensor | None,
    key_lengths: Tensor | None,
    causal: str | None,
    window: int | None,
    slopes: Sequence[float] | None,
    visible: Tensor | None,
) -> Tensor | None:
    """Return the sum of all terms that are added to logits, or None if there are no terms.

    The sum is minus infinity where a key is hidden.
    """
    keep, added = positional(
        query.shape[-2], key.shape[-2], causal=causal, window=window, key_lengths=key_lengths, slopes=slopes,
        dtype=query.dtype, device=query.device,
    )  # fmt: skip
    if visible is not None:
        keep = visible if keep is None else keep & visible
    parts = [part for part in (bias, added) if part is not None]
    if keep is not None:
        parts.append(torch.zeros(keep.shape, dtype=query.dtype, device=query.device).masked_fill(~keep, -math.inf))
    total = None
    for part in parts:
        total = part if total is None else total + part
    return total


def run_yardsticks(case: Case, inputs: Inputs) -> Iterator[dict[str, Tensor]]:
    """Yield the quantities of the reference and, if there is no soft-cap, of ``scaled_dot_product_attention``.

    The reference and ``scaled_dot_product_attention`` compute in the case's dtype. With functions of the logits or
    sinks, which they do not take, the yardstick is the formula in the case's dtype.
    """
    if inputs.options.get("score_mod") is not None or "sinks" in inputs.tensors:
        yield evaluate(case, inputs)
        return
    inputs = replace(inputs, options={name: inputs.options[name] for name in OPTIONS})
    yield compute_quantities(case, inputs, lambda given: {"output": CoreReference()(**given.arguments())})
    if not case.problem.softcap:
        yield compute_quantities(case, inputs, lambda given: {"output": _run_fused(**given.arguments())})


def _run_fused(query: Tensor, key: Tensor, value: Tensor, **rest: Any) -> Tensor:
    """Compute the output by ``scaled_dot_product_attention``, which does not support a soft-cap."""
    shared = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(shared, dim=1) for tensor in (key, value))
    mask = _make_mask(
        query, key, bias=rest.get("bias"), key_lengths=rest.get("key_lengths"), causal=rest["causal"],
        window=rest["window"], slopes=rest["alibi_slopes"], visible=rest.get("visible"),
    )  # fmt: skip
    mask = None if mask is None else mask.to(query.dtype)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=rest["scale"])
