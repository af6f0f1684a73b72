"""What a row of attention weights tells of itself: how spread out it is, and how much gradient it lets through."""

import torch
from torch import Tensor

__all__ = ["entropy_bits", "gradient_norm", "quartiles"]


def entropy_bits(weights: Tensor) -> Tensor:
    """−Σ_j w_j log₂ w_j.

    Shape: (…, keys), returns (…). Unit: bits; log₂ keys where all weights are equal, 0 where one is all.
    """
    return -torch.xlogy(weights, weights).sum(dim=-1) / torch.log(torch.tensor(2.0, dtype=weights.dtype))


def gradient_norm(scores: Tensor, cotangent: Tensor) -> Tensor:
    """Length of the gradient of Σ_j softmax(s)_j c_j by the scores s, of each row.

    Shape: both (…, keys), returns (…). Unit: that of c for each unit of s.
    """
    leaf = scores.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad((torch.softmax(leaf, dim=-1) * cotangent).sum(), leaf)
    length: Tensor = torch.linalg.vector_norm(gradient, dim=-1)
    return length


def quartiles(name: str, values: Tensor) -> dict[str, float]:
    """Median and quartiles of values, as ``<name>``, ``<name>_low`` and ``<name>_high``."""
    levels = torch.tensor([0.25, 0.5, 0.75], dtype=values.dtype)
    low, middle, high = torch.quantile(values.flatten(), levels).tolist()
    return {name: middle, f"{name}_low": low, f"{name}_high": high}
