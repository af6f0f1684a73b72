"""Two implementations of linear attention. This module imports attnbench, but never the operator or its checks."""

from torch import Tensor
from torch.nn.functional import elu

from attnbench.kernel import from_call

__all__ = ["FROM_THE_LEFT", "FROM_THE_RIGHT"]


def sum_from_the_left(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute the weights of all pairs of queries and keys first, then multiply the weights by the values."""
    weights = (elu(query) + 1) @ (elu(key) + 1).mT
    return weights @ value / weights.sum(dim=-1, keepdim=True)


def sum_from_the_right(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Multiply keys and values first, so that time and memory are linear in the number of keys."""
    q, k = elu(query) + 1, elu(key) + 1
    return q @ (k.mT @ value) / (q * k.sum(dim=-2, keepdim=True)).sum(dim=-1, keepdim=True)


FROM_THE_LEFT = from_call(sum_from_the_left, operator="linear_attention", name="linear_from_the_left")
FROM_THE_RIGHT = from_call(sum_from_the_right, operator="linear_attention", name="linear_from_the_right")
