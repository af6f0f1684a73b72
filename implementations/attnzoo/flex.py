"""``torch.nn.attention.flex_attention``, compiled: a fused kernel made for whatever changes the logits.

O = softmax(mod(scale · Q Kᵀ)) V, block by block over the keys with a running maximum and sum; here mod caps the logits
and adds the mask, and a causal flag leaves out the blocks that it hides. On a CPU torch has the forward pass alone.

Each width of heads is a kernel of its own, which Inductor writes as C++ (on CUDA, as Triton), once for any batch, heads
and lengths. Two things keep it so. Heads of keys stand in the batch, of which torch compiles for any; those of queries
that share one stand where heads do. And what is added is one row of numbers, whose places are worked out from steps
that are numbers themselves: of a mask's own dimensions torch 2.13 writes the names of some sizes wrong into a kernel.

Shape: Q (batch, heads, queries, head_dim), K (batch, kv_heads, keys, head_dim), V (batch, kv_heads, keys, head_dim_v).
Source: https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html;
Dong et al., Flex Attention, 2024, https://arxiv.org/abs/2412.05496.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Refusal
from attnbench.kernel import core_from_kernel, from_kernel
from attnbench.kernel.compiling import compiled_copy, compiler_refusal, environment, own, quiet

__all__ = ["CORE_FLEX", "FLEX", "flex", "refusal"]

NO_BACKWARD = "forward only on a CPU: no gradients"
EMPTY = "takes no tensor without elements"
# Of torch/_inductor/kernel/flex/flex_cpu.py, torch 2.13.
CPU_DTYPES = ("float32", "bfloat16", "float16")
# Seconds of CPU that a kind of call takes to compile, over 20 of them with an empty cache on a 2-core x86-64 machine
# (torch 2.13); kinds that the checks of the suite quick come to, of both operators, and calls that they make, without a
# mask and with one.
COMPILING_S = 5.9
KINDS, CALLS = {"plain": 9, "masked": 11}, {"plain": 347, "masked": 487}
# Queries and keys that a block mask tells of together: the library's own choice.
BLOCK = 128
# Sizes that a kind is compiled with, no two alike, or torch would take them for one: batch, queries, keys. Of more
# queries or keys than a block there are so many more.
SIZES = (3, 120, 104)
BEYOND_A_BLOCK = 2 * BLOCK


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention by ``flex_attention``; ``mask`` is additive. What k and v have of heads says itself who shares them."""
    del enable_gqa
    tracks = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, mask))
    if q.device.type == "cpu":
        _demand_a_cpu_kernel(q, tracks=tracks)
    (batch, heads, queries, head_dim), (_, shared, keys, head_dim_v) = q.shape, v.shape
    if 0 in (batch, queries, keys):
        raise Refusal(EMPTY)
    rows = (own(x.reshape(batch * shared, -1, *x.shape[2:])) for x in (q, k, v))
    numbers, places = (None, None) if mask is None else _row(mask, (batch, heads, queries, keys), shared)
    kind = _Kind(
        dtype=q.dtype,
        device=q.device,
        tracks=tracks,
        heads=heads // shared,
        widths=(head_dim, head_dim_v),
        ones=tuple(size == 1 for size in (batch * shared, queries, keys)),
        numbers=None if numbers is None else numbers.numel() == 1,
        capped=softcap is not None,
        is_causal=is_causal,
        beyond=(queries > BLOCK, keys > BLOCK),
        inference=torch.is_inference_mode_enabled(),
    )
    blocks = _causal_blocks(queries, keys, q.device) if is_causal else None
    cap = None if softcap is None else torch.full((), softcap, device=q.device)
    output = _compiled(kind)(*rows, scale, cap, numbers, places, blocks).reshape(batch, heads, queries, head_dim_v)
    # A row without any key: the kernel would divide 0 by 0.
    return output if mask is None else output.masked_fill((mask == -torch.inf).all(dim=-1, keepdim=True), 0.0)


def _row(mask: Tensor, shape: tuple[int, ...], shared: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Numbers of a mask one after another; heads of keys, and steps from one to the next.

    Steps of sequences, of heads of keys, of the heads of queries that share one, of queries, of keys.

    Shape: mask broadcastable to the shape (batch, heads, queries, keys).
    """
    mask = mask.contiguous()
    steps = torch.unflatten(mask.expand(shape), 1, (shared, -1)).stride()
    return own(mask.flatten()), tuple(torch.full((), number, device=mask.device) for number in (shared, *steps))


def _demand_a_cpu_kernel(q: Tensor, *, tracks: bool) -> None:
    """Raises: Refusal, before anything is compiled."""
    dtype = str(q.dtype).removeprefix("torch.")
    if tracks:
        raise Refusal(NO_BACKWARD)
    if dtype not in CPU_DTYPES:
        raise Refusal(_wide(dtype))


def _wide(dtype: str) -> str:
    return f"on a CPU computes in {', '.join(CPU_DTYPES)}, not in {dtype}"


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    cap: Tensor | None,
    numbers: Tensor | None,
    places: tuple[Tensor, ...] | None,
    blocks: Any,
) -> Tensor:
    """What is compiled. Shape: q (batch·kv_heads, heads that share, queries, head_dim), k and v with one head."""
    from torch.nn.attention.flex_attention import flex_attention

    def changed(logit: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap is not None:
            logit = cap * torch.tanh(logit / cap)
        if numbers is None or places is None:
            return logit
        shared, by_sequence, by_shared, by_head, by_query, by_key = places
        start = row // shared * by_sequence + row % shared * by_shared + head * by_head
        # Nothing here is below 0, which torch does not know, and would write one of those names to provide for.
        return logit + numbers[(start + query * by_query + key * by_key).clamp(min=0)]

    # The kernel's own scale is a constant of its source.
    changes = None if cap is None and numbers is None else changed
    return flex_attention(q * scale, k, v, score_mod=changes, block_mask=blocks, scale=1.0, enable_gqa=q.shape[1] > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What torch compiles anew for."""

    dtype: torch.dtype
    device: torch.device
    tracks: bool
    # Of queries that share one of keys.
    heads: int
    # Of queries and keys, and of values.
    widths: tuple[int, int]
    # Which of batch·kv_heads, queries and keys are 1.
    ones: tuple[bool, ...]
    # Whether what is added is one number; None: nothing is.
    numbers: bool | None
    capped: bool
    is_causal: bool
    # Whether queries and keys are more than one block.
    beyond: tuple[bool, bool]
    inference: bool


@cache
def _compiled(kind: _Kind) -> Callable[..., Tensor]:
    """The call as code of its own, compiled for any sizes by a call with some."""
    whole: Callable[..., Tensor] = compiled_copy(_attention)
    far = (0, *(BEYOND_A_BLOCK * beyond for beyond in kind.beyond))
    rows, queries, keys = (1 if one else n + more for one, n, more in zip(kind.ones, SIZES, far, strict=True))
    width, wide = kind.widths
    shapes = (rows, kind.heads, queries, width), (rows, 1, keys, width), (rows, 1, keys, wide)
    q, k, v = (torch.zeros(x, dtype=kind.dtype, device=kind.device, requires_grad=kind.tracks) for x in shapes)
    full = (rows, kind.heads, queries, keys)
    mask = (
        None
        if kind.numbers is None
        else torch.zeros((1,) if kind.numbers else full, dtype=kind.dtype, device=kind.device)
    )
    numbers, places = (None, None) if mask is None else _row(mask, full, 1)
    cap = torch.ones((), device=kind.device) if kind.capped else None
    blocks = _causal_blocks(queries, keys, kind.device) if kind.is_causal else None
    with quiet():
        whole(q, k, v, 0.5, cap, numbers, places, blocks)
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
    if reason := compiler_refusal(case):
        return reason
    if 0 in (problem.sequences, problem.queries, problem.columns):
        return EMPTY
    if case.device == "cpu" and case.differentiates:
        return NO_BACKWARD
    if case.device == "cpu" and case.dtype not in CPU_DTYPES:
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
    environment=environment,
    compiles=True,
)
CORE_FLEX = core_from_kernel(FLEX, unsupported=refusal, predicted_s=predicted_s)
