"""Attention without a mask by one of three methods, chosen by the dtype and the number of attention weights.

    O = softmax(scale · Q Kᵀ) V                       scale = 1/√head_dim

``scaled_dot_product_attention`` cuts the matrices of each head into blocks and never stores the
matrix of attention weights. If this matrix is of medium size (``FEW_WEIGHTS``), attention in blocks
usually takes longer than two products of whole matrices with a softmax between them. In float32 on
a CPU, a matrix of such a size is therefore stored. For a smaller matrix, one fused call is faster
than three calls. If gradients are needed, a stored matrix is kept for backward. The functions of this
module take no mask, so no row is fully masked. If every logit of a row overflows to minus infinity,
the method that stores the matrix returns NaN for that row.

In bfloat16, the fused kernel takes longer than two products with a softmax between them on a CPU that
has bfloat16 instructions but no matrix unit (``multiplies_bfloat16``). Without gradients, the matrices
are then computed in blocks of ``BLOCK_WEIGHTS`` weights, which stay in the processor's cache: as many
sequences, heads of one sequence, or queries of one head as fit (``attend_in_blocks``).

Shape: Q (heads, queries, head_dim), K and V (heads, keys, head_dim), for one sequence.
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html;
Vaswani et al., Attention Is All You Need, 2017, equation 1, https://arxiv.org/abs/1706.03762.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__all__ = [
    "BLOCK_WEIGHTS",
    "FEWEST_IN_BLOCKS",
    "FEW_WEIGHTS",
    "attend_each",
    "attend_in_blocks",
    "attend_storing_weights",
    "multiplies_bfloat16",
    "stores_blocks",
    "stores_weights",
]

# The attention weights of a sequence are stored if the number of weights, over all heads, is in
# this range. The weights then take at most 1 MiB in float32. Below the range, one fused call is
# faster than the three calls of the method that stores the weights. The ratio of the time with
# stored weights to the time of the fused kernel is 0.65 to 1.15 inside the range, 1.1 to 1.8 below
# the range, and up to 3 above the range. At a few sizes inside the range, the ratio is 1.5 to 1.8,
# because memory was returned to the operating system between calls. All ratios were measured on two
# cores of an Intel Xeon with 2 MiB of second-level cache each, with 4 to 12 heads of 32 or 64
# features.
FEW_WEIGHTS = range(2**14, 2**18)
# Number of attention weights of a block in bfloat16: 2 MiB. With 4 heads of 64
# features and 512 to 2048 tokens, blocks of 2¹⁹ to 2²¹ weights take the same time within 5 %. Blocks of 2¹⁶ weights
# take up to 1.2 times as long. Measured on one core of an AMD EPYC with 1 MiB of second-level cache.
BLOCK_WEIGHTS = 2**20
# Below this number of attention weights of a whole batch, one fused call in bfloat16 is as fast as blocks or faster.
# Measured with 1 and 8 sequences of 16 to 64 tokens, on the same processor.
FEWEST_IN_BLOCKS = 2**15


def stores_weights(weights: int, like: Tensor) -> bool:
    """Whether to store the attention weights of a sequence; ``weights`` is how many there are.

    Attention weights are stored for backward only in float32 on a CPU. Attention weights are never stored
    while a compiler captures a graph. The graph is used for calls of any size, so the graph must
    not depend on the size of one call.
    """
    if like.dtype != torch.float32 or not like.is_cpu or torch.compiler.is_compiling():
        return False
    # Convert to bool: under torch.jit.trace, sizes are tensors, and so is the result of a
    # comparison.
    return bool(FEW_WEIGHTS.start <= weights < FEW_WEIGHTS.stop)


def attend_storing_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention of one sequence by storing its matrix of attention weights.

    Shape: q (heads, queries, head_dim), k and v (heads, keys, head_dim), returns
    (queries, heads, head_dim).
    """
    return _store_and_multiply(q, k, v).transpose(0, 1)


def _store_and_multiply(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention by two products. Shape: as ``attend_storing_weights``, returns (heads, queries, head_dim)."""
    return torch.bmm(_multiply_and_scale(q, k).softmax(dim=-1), v)


def _multiply_and_scale(q: Tensor, k: Tensor) -> Tensor:
    """Compute the logits. Shape: as ``attend_storing_weights``, returns (heads, queries, keys)."""
    # One call of baddbmm multiplies and scales. With beta=0, baddbmm never reads its first
    # argument.
    return torch.baddbmm(q.new_empty(1, 1, 1), q, k.mT, beta=0, alpha=q.shape[-1] ** -0.5)


def attend_each(sequences: Iterable[Sequence[Tensor]], weights: int, *, like: Tensor) -> list[Tensor]:
    """Compute attention of sequences of different lengths, one after another.

    ``weights`` is the number of attention weights of the largest sequence. All sequences are
    computed by the method that this number determines. A separate choice for each sequence would
    add 1 % to the total time: the data of one sequence displace the code of the choice from the
    cache, and the next choice has to read it from memory again.

    Shape: each sequence is q (heads, queries, head_dim), k and v (heads, keys, head_dim), with the dtype and device of
    ``like``; each output is (queries, heads, head_dim).
    """
    if stores_weights(weights, like):
        return [attend_storing_weights(q, k, v) for q, k, v in sequences]
    # Add a batch dimension: without a batch dimension, torch does not choose its fused kernel.
    fused = (scaled_dot_product_attention(q[None], k[None], v[None]) for q, k, v in sequences)
    return [output.squeeze(0).transpose(0, 1) for output in fused]


def multiplies_bfloat16() -> bool:
    """Whether the CPU has bfloat16 instructions but no matrix unit.

    On such a CPU, torch's matrix products use these instructions. The fused attention kernel of torch is only fast in
    bfloat16 where there is a matrix unit (AMX).
    """
    # Older versions of torch do not tell the capabilities of the CPU.
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16")) and not capabilities.get("amx_bf16")


def stores_blocks(weights: int, like: Tensor) -> bool:
    """Whether to compute a batch by ``attend_in_blocks``; ``weights`` is the number of attention weights of the batch.

    Blocks are used in bfloat16 on a CPU, without gradients. They are never used while a graph is
    captured, because the number of blocks depends on the size of the call.
    """
    if like.dtype != torch.bfloat16 or not like.is_cpu or torch.is_grad_enabled() or weights < FEWEST_IN_BLOCKS:
        return False
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return not (torch.compiler.is_compiling() or tracing) and multiplies_bfloat16()


def attend_in_blocks(heads: Tensor, most: int = BLOCK_WEIGHTS) -> Tensor:
    """Compute attention in blocks of at most ``most`` attention weights, or of one query if it has more keys.

    Shape: heads (3, heads of all sequences, length, head_dim), which are queries, keys and values; returns
    (heads of all sequences, length, head_dim).
    """
    _, count, length, _ = heads.shape
    group = most // length**2  # whole heads that fit in a block
    if group >= count:
        return _overwrite_and_multiply(*heads.unbind())
    if group:
        return torch.cat([_overwrite_and_multiply(*part.unbind()) for part in torch.split(heads, group, dim=1)])
    outputs = []
    for q, k, v in heads.transpose(0, 1).unsqueeze(2):  # each (1, length, head_dim)
        parts = [_overwrite_and_multiply(part, k, v) for part in torch.split(q, max(1, most // length), dim=1)]
        outputs.append(torch.cat(parts, dim=1))
    return torch.cat(outputs)


def _overwrite_and_multiply(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention by two products, without gradients; the weights overwrite the logits.

    With a second tensor for the weights, a call with 4 heads of 64 features and 512 tokens takes 1.4 times as long.
    The reason was not measured.

    Shape: as ``attend_storing_weights``, returns (heads, queries, head_dim).
    """
    logits = _multiply_and_scale(q, k)
    return torch.bmm(torch.softmax(logits, dim=-1, out=logits), v)
