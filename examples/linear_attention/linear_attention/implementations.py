"""Two implementations of linear attention. They import the plug-in contract, and never the operator or its checks."""

from torch import Tensor
from torch.nn.functional import elu

from attnbench.kernel import from_call

__all__ = ["FROM_THE_LEFT", "FROM_THE_RIGHT"]


def sum_from_the_left(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Weights of all pairs of queries and keys, then values."""
    weights = (elu(query) + 1) @ (elu(key) + 1).mT
    return weights @ value / weights.sum(dim=-1, keepdim=True)


def sum_from_the_right(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Keys and values first: time and memory are linear in the number of keys."""
    q, k = elu(query) + 1, elu(key) + 1
    return q @ (k.mT @ value) / (q * k.sum(dim=-2, keepdim=True)).sum(dim=-1, keepdim=True)


FROM_THE_LEFT = from_call(sum_from_the_left, operator="linear_attention", name="linear_from_the_left")
FROM_THE_RIGHT = from_call(sum_from_the_right, operator="linear_attention", name="linear_from_the_right")
