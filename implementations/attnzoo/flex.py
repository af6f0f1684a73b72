"""``torch.nn.attention.flex_attention``, compiled: a fused kernel made for whatever changes the logits.

O = softmax(mod(scale · Q Kᵀ)) V, block by block over the keys with a running maximum and sum; here mod adds the mask,
and a causal flag leaves out the blocks that it hides. On a CPU torch has the forward pass alone.

Each form of mask is a kernel of its own, which Inductor writes as C++ (on CUDA, as Triton).

Shape: Q (batch, heads, queries, head_dim), K and V (batch, heads, keys, head_dim).
Source: https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html;
Dong et al., Flex Attention, 2024, https://arxiv.org/abs/2412.05496.
"""

import shutil
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Call, Inputs, Refusal
from attnbench.kernel import from_kernel

__all__ = ["FLEX", "flex", "refusal"]

NO_BACKWARD = "forward only on a CPU: no gradients"
# Of torch/_inductor/kernel/flex/flex_cpu.py, torch 2.13.
CPU_DTYPES = ("float32", "bfloat16", "float16")
# Compiled where they are asked for, one after another: no processes of torch's own that wait beside what is timed.
ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


def flex(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """Attention by ``flex_attention``; ``mask`` is additive."""
    tracks = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, mask))
    if tracks and q.device.type == "cpu":
        raise Refusal(NO_BACKWARD)
    blocks = _causal_blocks(q.shape[2], k.shape[2], q.device) if is_causal else None
    if mask is None:
        output: Tensor = _compiled((q.dtype, q.device, tracks, scale, blocks is None))(q, k, v, scale, blocks)
        return output
    mask = mask.expand(*q.shape[:3], k.shape[2])
    shared = tuple(stride == 0 for stride in mask.stride())
    output = _compiled((q.dtype, q.device, tracks, scale, shared), masked=True)(q, k, v, scale, mask)
    # A row without any key: the kernel would divide 0 by 0.
    return output.masked_fill((mask == float("-inf")).all(dim=-1, keepdim=True), 0.0)


def _plain(q: Tensor, k: Tensor, v: Tensor, scale: float, blocks: Any) -> Tensor:
    """What is compiled without a mask."""
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, block_mask=blocks, scale=scale)


def _masked(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor) -> Tensor:
    """What is compiled with a mask (batch, heads, queries, keys)."""
    from torch.nn.attention.flex_attention import flex_attention

    def added(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + mask[b, h, i, j]

    return flex_attention(q, k, v, score_mod=added, scale=scale)


@cache
def _compiled(kind: tuple[Any, ...], *, masked: bool = False) -> Callable[..., Tensor]:  # noqa: ARG001
    """The call as code of its own for a kind of it: torch compiles a piece of code eight times, then gives up on it."""
    function = _masked if masked else _plain
    copy = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    whole: Callable[..., Tensor] = torch.compile(copy, fullgraph=True)
    return whole


@cache
def _causal_blocks(queries: int, keys: int, device: torch.device) -> Any:
    """Blocks of which a causal mask, aligned at the top left, leaves something."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: i >= j, None, None, queries, keys, device=device)  # noqa: ARG005


def refusal(case: Case) -> str | None:
    """Why a case is not computed, or None."""
    problem = case.problem
    if case.compiler is not None:
        return "it is compiled already"
    if 0 in (problem.sequences, problem.queries, problem.columns):
        return "takes no tensor without elements"
    if case.device == "cuda":
        return None if torch.cuda.is_available() else "no CUDA device"
    if not any(shutil.which(name) for name in ("g++", "clang++")):
        return "torch.compile needs a C++ compiler on a CPU: install g++"
    if case.differentiates:
        return NO_BACKWARD
    if case.dtype not in CPU_DTYPES:
        return f"on a CPU computes in {', '.join(CPU_DTYPES)}, not in {case.dtype}"
    return None


def prepare(module: Any, case: Case, inputs: Inputs) -> Call:  # noqa: ARG001  # a module serves every case
    """The module, after a call for which it is compiled."""
    module(**inputs.arguments())
    return module  # type: ignore[no-any-return]


FLEX = from_kernel(
    flex,
    source="https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
    additive_mask=True,
    unsupported=refusal,
    environment=lambda: ENVIRONMENT,
    prepare=prepare,
)
