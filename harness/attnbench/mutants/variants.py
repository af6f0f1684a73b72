"""Correct variants that round differently; no check may fail any of them."""

import torch
from torch import Tensor

from attnbench.interface import Implementation
from attnbench.kernel import from_kernel
from attnbench.masks import additive, softmax_over_visible

__all__ = ["VARIANTS"]


def _hidden(logits: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return logits
    return logits + (additive(mask, logits.dtype) if mask.dtype == torch.bool else mask.to(logits.dtype))


def _scale_after(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
    """Scale on the logits instead of on the queries."""
    return softmax_over_visible(_hidden((q @ k.mT) * scale, mask)) @ v


def _scale_on_both(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
    """Half of the scale on each side."""
    root = scale**0.5
    return softmax_over_visible(_hidden((q * root) @ (k * root).mT, mask)) @ v


def _upcast(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
    """Everything in the next wider precision."""
    wide = torch.float64 if q.dtype in (torch.float32, torch.float64) else torch.float32
    weights = softmax_over_visible(_hidden((q.to(wide) * scale) @ k.to(wide).mT, mask))
    return (weights @ v.to(wide)).to(q.dtype)


def _normalised_late(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
    """Division by the sum after the product with the values."""
    logits = _hidden((q * scale) @ k.mT, mask)
    largest = logits.detach().amax(dim=-1, keepdim=True)
    exponentials = (logits - largest.masked_fill(largest == float("-inf"), 0.0)).exp()
    total = exponentials.sum(dim=-1, keepdim=True)
    return (exponentials @ v) / total.masked_fill(total == 0, 1.0)


VARIANTS: tuple[Implementation, ...] = (
    from_kernel(_scale_after, name="scale_after"),
    from_kernel(_scale_on_both, name="scale_on_both"),
    from_kernel(_upcast, name="upcast"),
    from_kernel(_normalised_late, name="normalised_late"),
)
