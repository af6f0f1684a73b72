"""The libraries that torch computes with, which read environment variables at their first use."""

import torch
from torch.nn import functional

__all__ = ["use_libraries"]

# Numbers of tokens and features, and of heads: large enough for the libraries of matrix products (MKL, oneDNN).
SIZE, HEADS = 64, 2
DTYPES = (torch.float32, torch.bfloat16)


def use_libraries() -> None:
    """Compute products, a softmax and a fused attention once, so that later changes of variables have no effect.

    Variables such as MKL_CBWR and ATEN_CPU_CAPABILITY choose slower code for the whole process, the reference included.
    """
    for dtype in DTYPES:
        tokens = torch.ones(SIZE, SIZE, dtype=dtype, requires_grad=True)
        projected = functional.linear(tokens, tokens)
        heads = projected.view(1, SIZE, HEADS, -1).transpose(1, 2)
        weights = torch.softmax(heads @ heads.mT, dim=-1)
        fused = functional.scaled_dot_product_attention(heads, heads, heads)
        torch.autograd.grad((weights @ fused).sum(), tokens)
