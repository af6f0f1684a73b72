"""What a layer of a model asks of its attention, as a case that an implementation can refuse."""

import torch
from torch import Tensor

from attnbench.cases import Case, Mode
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["case_of_call", "form_of", "mode_of"]


def form_of(mask: Tensor | None, *, is_causal: bool) -> str:
    """Name of the mask in a problem. Shape: mask broadcastable to (batch, heads, queries, keys)."""
    if is_causal:
        return "causal"
    if mask is None:
        return "none"
    shared = all(size == 1 for size in mask.shape[:-2])
    return f"{'bool' if mask.dtype == torch.bool else 'float'}{'2d' if shared else '3d'}"


def mode_of(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, dropout: float, training: bool) -> Mode:
    """Mode whose gradients and dropout are those of the call."""
    tracked = [one is not None and one.requires_grad for one in (query, key, value, mask)]
    if not torch.is_grad_enabled() or not any(tracked):
        if training:
            return "sampling"
        return "inference_mode" if torch.is_inference_mode_enabled() else "inference"
    numbers = mask is not None and mask.is_floating_point()
    if numbers and not tracked[-1] and not (training and dropout):
        # The mode with gradients in which a mask has none: not every kernel has that of a mask.
        return "tuning"
    return "train" if training else "eval"


def case_of_call(query: Tensor, key: Tensor, *, form: str, need_weights: bool, dropout: float, mode: Mode) -> Case:
    """The call as a case: projections that change nothing, and weights of each head if any.

    Shape: query (batch, heads, queries, head_dim), key (batch, heads, keys, head_dim).
    """
    batch, heads, queries, width = query.shape
    problem = MultiheadProblem(
        batch=batch,
        queries=queries,
        keys=key.shape[2],
        embed_dim=heads * width,
        num_heads=heads,
        batch_first=True,
        need_weights=need_weights,
        is_causal=form == "causal",
        dropout=dropout,
        mask=form,
    )
    dtype = str(query.dtype).removeprefix("torch.")
    return Case(operator="multihead", problem=problem, dtype=dtype, device=query.device.type, mode=mode)  # type: ignore[arg-type]
