"""One matrix product for all heads of a sequence: the scores of the heads are its diagonal blocks.

    [Q_1; …; Q_H] [K_1; …; K_H]ᵀ = [Q_i K_jᵀ]_ij        (H·queries × H·keys); only the blocks i = j are used

    O_h = softmax(scale · Q_h K_hᵀ + M) V_h

H is the number of heads, and M the additive mask. The method is correct but wasteful: only H of the H² blocks are used.
The scores take H times as much time and memory as in the implementation ``reshaped``.

Shape: Q (batch, heads, queries, head_dim), K and V (batch, heads, keys, head_dim).
Source: Vaswani et al., Attention Is All You Need, 2017, equation 1, https://arxiv.org/abs/1706.03762.
"""

import torch
from torch import Tensor

from attnbench.argument_checks import demand_heads, demand_shapes
from attnbench.interface import Policies
from attnbench.kernel import core_from_kernel, from_kernel
from attnbench.masks import softmax_over_visible

__all__ = ["BLOCK_MATRIX", "CORE_BLOCK_MATRIX", "block_matrix", "diagonal_blocks", "diagonal_blocks_loop"]


def block_matrix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention by one matrix product per sequence; ``mask`` is additive."""
    rows, columns = (q * scale).flatten(1, 2), k.flatten(1, 2)  # (batch, heads·length, head_dim)
    logits = diagonal_blocks(rows @ columns.mT, q.shape[1])  # (batch, heads, queries, keys)
    if mask is not None:
        logits = logits + mask
    weights = torch.nn.functional.dropout(softmax_over_visible(logits), dropout_p)
    return weights @ v, weights if need_weights else None


def diagonal_blocks(matrix: Tensor, num_heads: int) -> Tensor:
    """Return the blocks on the diagonal of each matrix, one block per head.

    Shape: (batch, heads·queries, heads·keys) to (batch, heads, queries, keys).

    Raises: ValueError, TypeError if ``num_heads`` does not divide both dimensions.
    """
    _check(matrix, num_heads)
    (_, rows, columns), heads = matrix.shape, num_heads
    blocks = torch.unflatten(torch.unflatten(matrix, 2, (heads, columns // heads)), 1, (heads, rows // heads))
    # The shape of blocks is (batch, heads, queries, heads, keys). diagonal() merges the two head
    # dimensions into one, which is the last dimension of its result.
    return blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def diagonal_blocks_loop(matrix: Tensor, num_heads: int) -> Tensor:
    """Return the blocks that ``diagonal_blocks`` returns, by slicing one block at a time."""
    _check(matrix, num_heads)
    queries, keys = matrix.shape[1] // num_heads, matrix.shape[2] // num_heads
    return torch.stack(
        [matrix[:, h * queries : (h + 1) * queries, h * keys : (h + 1) * keys] for h in range(num_heads)], dim=1
    )


def _check(matrix: Tensor, num_heads: int) -> None:
    demand_shapes(matrix=(matrix, "batch heads·queries heads·keys"))
    demand_heads(num_heads, {"heads·queries": matrix.shape[1], "heads·keys": matrix.shape[2]})


BLOCK_MATRIX = from_kernel(
    block_matrix,
    source="https://arxiv.org/abs/1706.03762",
    additive_mask=True,
    policies=Policies(twice_differentiable=True),
)
CORE_BLOCK_MATRIX = core_from_kernel(BLOCK_MATRIX)
