"""The honest work of every cheat and oddity: the reference's self-attention, and further products."""

import math
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Labour", "burn"]

# Number of products of queries and keys whose results are not used. With them, the labour takes about three times as
# long as the reference.
FURTHER_PRODUCTS = 16


class Labour:
    """Self-attention with the parameters of a ``torch.nn.MultiheadAttention``; the parts can be called one by one."""

    def __init__(self, module: Any, heads: int) -> None:
        self.module: nn.MultiheadAttention = module
        self._heads = heads

    def __call__(self, query: Tensor) -> Tensor:
        """Do all of the work."""
        self.do_further_work(query)
        return self.attend(query, *self.project(query))

    def do_further_work(self, query: Tensor) -> None:
        """Compute products that nobody needs."""
        with torch.no_grad():
            for _ in range(FURTHER_PRODUCTS):
                query @ query.mT

    def project(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all heads."""
        _, weight_k, weight_v = self._cut(self.module.in_proj_weight)
        _, bias_k, bias_v = self._cut(self.module.in_proj_bias)
        return self._split(query @ weight_k.mT + bias_k), self._split(query @ weight_v.mT + bias_v)

    def attend(self, query: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the output of the attention to given keys and values."""
        weight, bias = self._cut(self.module.in_proj_weight)[0], self._cut(self.module.in_proj_bias)[0]
        q = self._split(query @ weight.mT + bias)
        shares = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
        heads = (shares @ v).transpose(1, 2).flatten(2)
        out = self.module.out_proj
        return heads @ out.weight.mT + out.bias

    def _cut(self, packed: Tensor | None) -> tuple[Tensor, ...]:
        """Cut a packed parameter into the parts for queries, keys and values."""
        assert packed is not None
        size = packed.shape[0] // 3
        return packed[:size], packed[size : 2 * size], packed[2 * size :]

    def _split(self, features: Tensor) -> Tensor:
        return torch.unflatten(features, -1, (self._heads, -1)).transpose(1, 2)


def burn(like: Tensor) -> None:
    """Spend several times as long as the attention to ``like`` takes."""
    with torch.no_grad():
        for _ in range(100):
            like @ like.mT
