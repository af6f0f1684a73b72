"""Statistics of rows of attention weights: entropy, norm of the gradient with respect to the scores, and quartiles."""

import torch
from torch import Tensor

__all__ = ["entropy_bits", "gradient_norm", "quartiles"]


def entropy_bits(weights: Tensor) -> Tensor:
    """Entropy −Σ_j w_j log₂ w_j of each row of weights.

    Shape: (…, keys), returns (…).
    Unit: bits. The entropy is log₂(keys) if all weights are equal, and 0 if one weight is 1.
    """
    return -torch.xlogy(weights, weights).sum(dim=-1) / torch.log(torch.tensor(2.0, dtype=weights.dtype))


def gradient_norm(scores: Tensor, cotangent: Tensor) -> Tensor:
    """Norm of the gradient of Σ_j softmax(s)_j c_j with respect to the scores s, for each row; c is ``cotangent``.

    Shape: scores and cotangent (…, keys), returns (…). Unit: the unit of c per unit of s.
    """
    leaf = scores.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad((torch.softmax(leaf, dim=-1) * cotangent).sum(), leaf)
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=-1)
    return norm


def quartiles(name: str, values: Tensor) -> dict[str, float]:
    """Return the median of all values as ``<name>``, and the quartiles as ``<name>_low`` and ``<name>_high``."""
    levels = torch.tensor([0.25, 0.5, 0.75], dtype=values.dtype)
    low, middle, high = torch.quantile(values.flatten(), levels).tolist()
    return {name: middle, f"{name}_low": low, f"{name}_high": high}
