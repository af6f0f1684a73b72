"""``torch.nn.attention.flex_attention``, compiled: a fused kernel made for whatever changes the logits.

O = softmax(mod(scale · Q Kᵀ)) V, block by block over the keys with a running maximum and sum; here mod adds the mask,
and a causal flag leaves out the blocks that it hides. On a CPU torch has the forward pass alone.

Each number of heads and each head_dim is a kernel of its own, which Inductor writes as C++ (on CUDA, as Triton), once
for any batch and lengths. With a mask it is one for each batch and lengths, too: for any, torch 2.13 writes the names
of some sizes wrong into a CPU kernel.

Shape: Q (batch, heads, queries, head_dim), K and V (batch, heads, keys, head_dim).
Source: https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html;
Dong et al., Flex Attention, 2024, https://arxiv.org/abs/2412.05496.
"""

import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Refusal
from attnbench.kernel import from_kernel

__all__ = ["FLEX", "flex", "refusal"]

NO_BACKWARD = "forward only on a CPU: no gradients"
# Of torch/_inductor/kernel/flex/flex_cpu.py, torch 2.13.
CPU_DTYPES = ("float32", "bfloat16", "float16")
# Compiled where they are asked for, one after another: no processes of torch's own that wait beside what is timed.
ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
# Seconds of CPU that a kind of call takes to compile, over 20 of them with an empty cache on a 2-core x86-64 machine
# (torch 2.13); kinds that the checks of the suite quick come to and calls that they make, on cases without a mask and
# with one.
COMPILING_S = 7.4
KINDS, CALLS = {"plain": 7, "masked": 15}, {"plain": 220, "masked": 319}
# Queries and keys that a block mask tells of together: the library's own choice.
BLOCK = 128
# Sizes that a kind is compiled with, no two alike, or torch would take them for one: batch, queries, keys. Of more
# queries or keys than a block there are so many more.
SIZES = (3, 120, 104)
BEYOND_A_BLOCK = 2 * BLOCK


def flex(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """Attention by ``flex_attention``; ``mask`` is additive."""
    tracks = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, mask))
    if q.device.type == "cpu":
        _demand_a_cpu_kernel(q, tracks=tracks)
    # One layout of memory, that in which projections leave them, is compiled for.
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    batch, heads, queries, head_dim = q.shape
    mask4 = None if mask is None else mask if mask.dim() == 4 else mask[None, None]
    kind = _Kind(
        dtype=q.dtype,
        device=q.device,
        tracks=tracks,
        heads=heads,
        head_dim=head_dim,
        ones=tuple(size == 1 for size in (batch, queries, k.shape[2])),
        is_causal=is_causal,
        beyond=(queries > BLOCK, k.shape[2] > BLOCK),
        shared=None if mask4 is None else tuple(size == 1 for size in mask4.shape),
        sizes=None if mask4 is None else (batch, queries, k.shape[2]),
        inference=torch.is_inference_mode_enabled(),
    )
    blocks = _causal_blocks(queries, k.shape[2], q.device) if is_causal else None
    output = _compiled(kind)(q, k, v, scale, None if mask4 is None else mask4.contiguous(), blocks)
    # A row without any key: the kernel would divide 0 by 0.
    return output if mask4 is None else output.masked_fill((mask4 == -torch.inf).all(dim=-1, keepdim=True), 0.0)


def _demand_a_cpu_kernel(q: Tensor, *, tracks: bool) -> None:
    """Raises: Refusal, before anything is compiled."""
    dtype = str(q.dtype).removeprefix("torch.")
    if tracks:
        raise Refusal(NO_BACKWARD)
    if dtype not in CPU_DTYPES:
        raise Refusal(_wide(dtype))


def _wide(dtype: str) -> str:
    return f"on a CPU computes in {', '.join(CPU_DTYPES)}, not in {dtype}"


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, blocks: Any) -> Tensor:
    """What is compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    q = q * scale  # the kernel's own scale is a constant of its source
    if mask is None:
        return flex_attention(q, k, v, block_mask=blocks, scale=1.0)
    numbers = mask.expand(*q.shape[:3], k.shape[2])  # as large as the logits, without being stored so

    def added(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + numbers[b, h, i, j]

    return flex_attention(q, k, v, score_mod=added, scale=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What torch compiles anew for."""

    dtype: torch.dtype
    device: torch.device
    tracks: bool
    heads: int
    head_dim: int
    # Which of batch, queries and keys are 1; and of the mask's dimensions, None: no mask.
    ones: tuple[bool, ...]
    shared: tuple[bool, ...] | None
    # Batch, queries and keys, where it is compiled for these alone.
    sizes: tuple[int, int, int] | None
    is_causal: bool
    # Whether queries and keys are more than one block.
    beyond: tuple[bool, bool]
    inference: bool


@cache
def _compiled(kind: _Kind) -> Callable[..., Tensor]:
    """The call as code of its own, compiled for any sizes by a call with some.

    Torch compiles a piece of code eight times, then gives up on it.
    """
    copy = FunctionType(_attention.__code__.replace(), _attention.__globals__, _attention.__name__)
    whole: Callable[..., Tensor] = torch.compile(copy, fullgraph=True, dynamic=kind.sizes is None)
    if kind.sizes is not None:
        return whole
    far = (0, *(BEYOND_A_BLOCK * beyond for beyond in kind.beyond))
    batch, queries, keys = (1 if one else n + more for one, n, more in zip(kind.ones, SIZES, far, strict=True))
    q, k, v = (
        torch.zeros(batch, n, kind.heads, kind.head_dim, dtype=kind.dtype, device=kind.device).requires_grad_(
            kind.tracks
        )
        for n in (queries, keys, keys)
    )
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with warnings.catch_warnings():
        # Said of torch's own code, when it is first imported.
        warnings.simplefilter("ignore", DeprecationWarning)
        whole(q, k, v, 0.5, None, _causal_blocks(queries, keys, kind.device) if kind.is_causal else None)
    return whole


@cache
def _causal_blocks(queries: int, keys: int, device: torch.device) -> Any:
    """Blocks of which a causal mask, aligned at the top left, leaves something."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(_is_seen, None, None, queries, keys, device=device, BLOCK_SIZE=BLOCK)


def _is_seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:  # noqa: ARG001  # flex_attention calls it so
    """Whether query i sees key j."""
    return i >= j


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
        return _wide(case.dtype)
    return None


def predicted_s(case: Case) -> float | None:
    """Seconds of one call on a CPU, with its share of what its kinds take to compile."""
    which = "plain" if case.problem.mask == "none" else "masked"
    return KINDS[which] * COMPILING_S / CALLS[which] if case.device == "cpu" else None


FLEX = from_kernel(
    flex,
    source="https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
    additive_mask=True,
    unsupported=refusal,
    predicted_s=predicted_s,
    environment=lambda: ENVIRONMENT,
    compiles=True,
)
