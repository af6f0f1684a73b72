"""Attention of sequences by one of two ways: the weights never stored, or stored where they are few.

    O = softmax(scale · Q Kᵀ) V                       scale = 1/√head_dim

``scaled_dot_product_attention`` cuts every head's matrices into blocks, and multiplies these one by one. On a CPU that
takes longer than two products of whole matrices and a softmax between them, as long as the weights stay in the cache.
So in float32 on a CPU they are stored where they are few, and with gradients kept for backward. Without a mask no row
is hidden; one whose every logit overflows to minus infinity gives NaN where they are stored.

Shape: Q (heads, queries, head_dim), K and V (heads, keys, head_dim), of one sequence.
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html;
Vaswani et al., Attention Is All You Need, 2017, equation 1, https://arxiv.org/abs/1706.03762.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["FEW_WEIGHTS", "attention_of_each", "stored_attention", "stores"]

# Weights of all heads, up to 1 MiB in float32; of fewer, one call takes less time than three. On two cores of an Intel
# Xeon with 2 MiB of second-level cache each, 4 to 12 heads of 32 or 64 features: storing them takes 0.65 to 1.15 of the
# fused kernel's time between the two (1.5 to 1.8 at a size here and there, where memory went back to the system between
# calls), 1.1 to 1.8 times as long below, and up to 3 times as long above.
FEW_WEIGHTS = range(2**14, 2**18)


def stores(weights: int, like: Tensor) -> bool:
    """Whether so many weights are stored; none but in float32 on a CPU.

    In half precision CPUs that multiply in it are quicker in blocks. A graph is for calls of any size: nothing may be
    asked of one there.
    """
    if like.dtype != torch.float32 or not like.is_cpu or torch.compiler.is_compiling():
        return False
    return bool(FEW_WEIGHTS.start <= weights < FEW_WEIGHTS.stop)  # a tensor, while it is traced


def stored_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of a sequence by way of its weights: (queries, heads, head_dim)."""
    # The product and its scale in one call; with beta=0 what it adds is never read.
    logits = torch.baddbmm(q.new_empty(1, 1, 1), q, k.mT, beta=0, alpha=q.shape[-1] ** -0.5)  # (heads, queries, keys)
    return torch.bmm(logits.softmax(dim=-1), v).transpose(0, 1)


def attention_of_each(sequences: Iterable[Sequence[Tensor]], weights: int, *, like: Tensor) -> list[Tensor]:
    """Attention of sequences of their own lengths, one after another.

    ``weights`` is how many the largest of them has. Asking each for its size, while the last one's numbers fill the
    cache, would take 1 % of all.

    Shape: sequences of q (heads, queries, head_dim), k and v (heads, keys, head_dim), of the dtype and device of
    ``like``; each output (queries, heads, head_dim).
    """
    if stores(weights, like):
        return [stored_attention(q, k, v) for q, k, v in sequences]
    # Without a batch torch would not take its fused kernel.
    fused = (scaled_dot_product_attention(q[None], k[None], v[None]) for q, k, v in sequences)
    return [output.squeeze(0).transpose(0, 1) for output in fused]
