"""Describe the attention call of a model's layer as a case, which an implementation can declare unsupported."""

import torch
from torch import Tensor

from attnbench.cases import Case, Mode
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["choose_mode", "make_case_of_call", "name_mask"]


def name_mask(mask: Tensor | None, *, is_causal: bool) -> str:
    """Return the name by which a case describes a mask of this dtype and shape, such as ``bool2d``.

    Shape: mask broadcastable to (batch, heads, queries, keys).
    """
    if is_causal:
        return "causal"
    if mask is None:
        return "none"
    shared = all(size == 1 for size in mask.shape[:-2])
    return f"{'bool' if mask.dtype == torch.bool else 'float'}{'2d' if shared else '3d'}"


def choose_mode(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, dropout: float, training: bool
) -> Mode:
    """Return the mode of a case that has the same gradients and dropout as a call with these arguments."""
    tracked = [one is not None and one.requires_grad for one in (query, key, value, mask)]
    if not torch.is_grad_enabled() or not any(tracked):
        if training:
            return "sampling"
        return "inference_mode" if torch.is_inference_mode_enabled() else "inference"
    additive = mask is not None and mask.is_floating_point()
    if additive and not tracked[-1] and not (training and dropout):
        # The call needs gradients, but not the gradient of its additive mask. The mode "tuning" describes such a call.
        # In any other mode with gradients, a kernel that cannot compute the mask's gradient would have to refuse the
        # case.
        return "tuning"
    return "train" if training else "eval"


def make_case_of_call(query: Tensor, key: Tensor, *, form: str, need_weights: bool, dropout: float, mode: Mode) -> Case:
    """Return the case that describes a call on split heads, with identity projections.

    If ``need_weights`` is true, the case asks for the attention weights of each head.

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
