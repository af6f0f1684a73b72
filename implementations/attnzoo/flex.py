"""``torch.nn.attention.flex_attention``, compiled: a fused kernel generated for a function that modifies the logits.

O = softmax(mod(scale · Q Kᵀ)) V, block by block over the keys with a running maximum and sum. The
function mod applies the soft-cap and adds the mask. With is_causal=True, blocks of keys that the
causal mask hides are skipped. On a CPU, torch has only the forward pass.

Inductor generates one kernel (C++; on CUDA, Triton) for each head width. The kernel takes any batch
size, any number of key heads and any lengths, because of two measures. First, the heads of keys are
folded into the batch dimension, which may have any size. The heads of queries that share a key head
stay in the head dimension. Second, the mask is passed as a flat tensor of numbers, and the strides
of the mask are passed as scalar tensors. If the mask were passed with its dimensions, the code that
torch 2.13 generates would contain wrong variable names for some sizes.

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
from attnbench.interface import Policies, Refusal
from attnbench.kernel import core_from_kernel, from_kernel
from attnbench.kernel.compiling import (
    compile_copy,
    explain_compiler_refusal,
    get_compiler_environment,
    ignore_deprecation_warnings,
    make_contiguous,
)
from attnbench.refusals import LacksGradients, NeedsDtype, NeedsElements, TypedRefusal, UnsupportedSize

__all__ = ["CORE_FLEX", "FLEX", "explain_refusal", "flex"]

NO_BACKWARD = LacksGradients(device="cpu")
EMPTY = NeedsElements()
# Smallest head width that the Triton kernel accepts, from torch/_inductor/kernel/flex/flex_attention.py, torch 2.11.
NARROWEST_HEAD = 16
TOO_NARROW = UnsupportedSize(name="head_dim", least=NARROWEST_HEAD, device="cuda")
# Dtypes of the CPU kernel, from torch/_inductor/kernel/flex/flex_cpu.py, torch 2.13.
CPU_DTYPES = ("float32", "bfloat16", "float16")
OTHER_DTYPE = NeedsDtype(dtypes=CPU_DTYPES, device="cpu")
# CPU seconds to compile a kernel for one kind of call (see ``_Kind``), measured over 20 kinds of
# calls with an empty compiler cache on a 2-core x86-64 machine (torch 2.13).
COMPILING_S = 5.9
# In all checks of the suite ``quick`` of both operators (multihead and attention_core): KINDS is the
# number of kinds of calls that are compiled, and CALLS is the number of calls. "plain" is for cases
# without a mask, "masked" for cases with a mask.
KINDS, CALLS = {"plain": 9, "masked": 11}, {"plain": 347, "masked": 487}
# Number of queries and number of keys in one block of a block mask. The value is torch's default.
BLOCK = 128
# Sizes of the tensors with which a kernel is compiled: batch·kv_heads, queries, keys. All sizes are
# different, because torch would assume that two dimensions of equal size are equal in every call.
SIZES = (3, 120, 104)
# Number added to the number of queries in SIZES if a kind of call has more than one block of
# queries. The same number is added to the number of keys if a kind of call has more than one block
# of keys.
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
    """Compute attention by ``flex_attention``; ``mask`` is additive.

    ``enable_gqa`` is ignored: the shapes of k and v show whether query heads share key heads.
    """
    del enable_gqa
    tracks = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, mask))
    (batch, heads, queries, head_dim), (_, shared, keys, head_dim_v) = q.shape, v.shape
    if q.device.type == "cpu":
        _demand_cpu_support(q, tracks=tracks)
    elif min(head_dim, head_dim_v) < NARROWEST_HEAD:
        raise Refusal(TOO_NARROW)
    if 0 in (batch, queries, keys):
        raise Refusal(EMPTY)
    rows = (make_contiguous(x.reshape(batch * shared, -1, *x.shape[2:])) for x in (q, k, v))
    numbers, layout = (None, None) if mask is None else _flatten_mask(mask, (batch, heads, queries, keys), shared)
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
    blocks = _make_causal_blocks(queries, keys, q.device) if is_causal else None
    cap = None if softcap is None else torch.full((), softcap, device=q.device)
    output = _compile_for(kind)(*rows, scale, cap, numbers, layout, blocks).reshape(batch, heads, queries, head_dim_v)
    # In a fully masked row the kernel divides 0 by 0, so the output is set to 0.
    return output if mask is None else output.masked_fill((mask == -torch.inf).all(dim=-1, keepdim=True), 0.0)


def _flatten_mask(mask: Tensor, shape: tuple[int, ...], shared: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the elements of a mask as a flat tensor, and the mask's layout: the number of key heads and five strides.

    ``shared`` is the number of key heads. The strides are those of sequences, key heads, query
    heads that share a key head, queries and keys.

    Shape: mask broadcastable to ``shape``, which is (batch, heads, queries, keys).
    """
    mask = mask.contiguous()
    strides = torch.unflatten(mask.expand(shape), 1, (shared, -1)).stride()
    layout = tuple(torch.full((), number, device=mask.device) for number in (shared, *strides))
    return make_contiguous(mask.flatten()), layout


def _demand_cpu_support(q: Tensor, *, tracks: bool) -> None:
    """Refuse gradients and dtypes for which torch has no CPU kernel, before a kernel is compiled.

    ``tracks`` is true if the call needs gradients.

    Raises: Refusal.
    """
    dtype = str(q.dtype).removeprefix("torch.")
    if tracks:
        raise Refusal(NO_BACKWARD)
    if dtype not in CPU_DTYPES:
        raise Refusal(OTHER_DTYPE)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    cap: Tensor | None,
    numbers: Tensor | None,
    layout: tuple[Tensor, ...] | None,
    blocks: Any,
) -> Tensor:
    """Compute attention by ``flex_attention``; ``_compile_for`` compiles this function.

    Shape: q (batch·kv_heads, query heads per key head, queries, head_dim), k (batch·kv_heads, 1, keys, head_dim),
    v (batch·kv_heads, 1, keys, head_dim_v).
    """
    from torch.nn.attention.flex_attention import flex_attention

    def modify_logit(logit: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap is not None:
            logit = cap * torch.tanh(logit / cap)
        if numbers is None or layout is None:
            return logit
        shared, by_sequence, by_shared, by_head, by_query, by_key = layout
        start = row // shared * by_sequence + row % shared * by_shared + head * by_head
        # The index is never negative, but torch cannot prove that. Without clamp() torch would generate code that wraps
        # a negative index, and that code would contain a wrong variable name (see the module's docstring).
        return logit + numbers[(start + query * by_query + key * by_key).clamp(min=0)]

    # q is scaled here, because torch compiles the argument ``scale`` of flex_attention as a
    # constant.
    score_mod = None if cap is None and numbers is None else modify_logit
    return flex_attention(q * scale, k, v, score_mod=score_mod, block_mask=blocks, scale=1.0, enable_gqa=q.shape[1] > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A kind of call: calls that differ in a field of this class need different compiled code."""

    dtype: torch.dtype
    device: torch.device
    tracks: bool
    # Number of query heads that share one key head.
    heads: int
    # Head width of queries and keys, and head width of values.
    widths: tuple[int, int]
    # Whether each of these sizes is 1: batch·kv_heads, queries, keys.
    ones: tuple[bool, ...]
    # Whether the mask has a single element; None if there is no mask.
    numbers: bool | None
    capped: bool
    is_causal: bool
    # Whether the call has more than one block of queries, and whether it has more than one block of
    # keys.
    beyond: tuple[bool, bool]
    inference: bool


@cache
def _compile_for(kind: _Kind) -> Callable[..., Tensor]:
    """Return ``_attend``, compiled for a kind of call with tensors of any size.

    torch.compile compiles at the first call, so ``_attend`` is called here once, on zeros.
    """
    whole: Callable[..., Tensor] = compile_copy(_attend)
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
    numbers, layout = (None, None) if mask is None else _flatten_mask(mask, full, 1)
    cap = torch.ones((), device=kind.device) if kind.capped else None
    blocks = _make_causal_blocks(queries, keys, kind.device) if kind.is_causal else None
    with ignore_deprecation_warnings():
        whole(q, k, v, 0.5, cap, numbers, layout, blocks)
    return whole


@cache
def _make_causal_blocks(queries: int, keys: int, device: torch.device) -> Any:
    """Return the block mask of a causal mask that is aligned at the top left."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(_is_visible, None, None, queries, keys, device=device, BLOCK_SIZE=BLOCK)


def _is_visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:  # noqa: ARG001  # the signature of flex_attention
    """Whether query i sees key j."""
    return i >= j


def explain_refusal(case: Case) -> TypedRefusal | None:
    """Return why ``flex`` does not compute a case, or None if it does."""
    problem = case.problem
    if reason := explain_compiler_refusal(case):
        return reason
    if 0 in (problem.sequences, problem.queries, problem.columns):
        return EMPTY
    if case.device == "cpu" and case.differentiates:
        return NO_BACKWARD
    if case.device == "cpu" and case.dtype not in CPU_DTYPES:
        return OTHER_DTYPE
    if case.device == "cuda" and problem.head_dim < NARROWEST_HEAD:
        return TOO_NARROW
    return None


def explain_core_refusal(case: Case) -> TypedRefusal | None:
    """Return why ``flex`` does not compute a case of ``attention_core``, or None if it does."""
    too_narrow = case.device == "cuda" and case.problem.value_dim < NARROWEST_HEAD
    return explain_refusal(case) or (TOO_NARROW if too_narrow else None)


def predict_call_s(case: Case) -> float | None:
    """Return the expected seconds of a call on a CPU, or None for a case on another device.

    The expected time is the time to compile all kinds of calls, divided by the number of calls.
    """
    which = "plain" if case.problem.mask == "none" else "masked"
    return KINDS[which] * COMPILING_S / CALLS[which] if case.device == "cpu" else None


FLEX = from_kernel(
    flex,
    source="https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
    # A transform of torch.func cannot look into a compiled function.
    policies=Policies(transforms="refused"),
    additive_mask=True,
    unsupported=explain_refusal,
    predicted_s=predict_call_s,
    environment=get_compiler_environment,
    compiles=True,
)
CORE_FLEX = core_from_kernel(FLEX, unsupported=explain_core_refusal, predicted_s=predict_call_s)
