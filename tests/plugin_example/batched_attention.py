"""A module class that does not use attnbench, and a subclass that refuses what no argument stands for."""

from typing import Any

from my_attention import MyAttention
from torch import Tensor

from attnbench import Refusal


class BatchedAttention(MyAttention):
    """``MyAttention`` for batches alone."""

    def forward(self, query: Tensor, *others: Any, **arguments: Any) -> tuple[Tensor, Tensor | None]:
        """Refuse unbatched input, and compute everything else."""
        if query.dim() == 2:
            raise Refusal("written for batches: query must have 3 dimensions")
        return super().forward(query, *others, **arguments)
