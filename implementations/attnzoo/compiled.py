"""The plain formula under ``torch.compile``: scale, mask, softmax and dropout are fused into a few loops over memory.

O = softmax(scale · Q Kᵀ + M) V for each of the batch·heads matrices, with an additive mask M.
Inductor leaves the two matrix products as they are. Inductor generates C++ (on CUDA, Triton) for
the operations between the products.

Calls are of the same kind if they agree in dtype, in the tensors that require gradients, in which
dimensions have size 1, and in the other fields of ``_Kind``. The formula is compiled once for each
kind of call. The compiled formula takes tensors of any size. If torch cannot compile the formula,
the call raises; there is no fallback. Calls without queries or keys run uncompiled. The functorch
setting ``donated_buffer`` is switched off for the whole process, so that backward can run twice
after one forward pass.

Shape: Q (batch·heads, queries, head_dim), K (batch·heads, keys, head_dim), V (batch·heads, keys, head_dim_v),
M (1 or batch·heads, 1 or queries, keys).
Source: https://docs.pytorch.org/docs/stable/generated/torch.compile.html;
Ansel et al., PyTorch 2, 2024, https://doi.org/10.1145/3620665.3640366.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch._functorch import config as functorch_settings

from attnbench.cases import Case
from attnbench.interface import Policies
from attnbench.kernel import core_from_kernel, from_kernel
from attnbench.kernel.compiling import (
    compile_copy,
    explain_compiler_refusal,
    get_compiler_environment,
    ignore_deprecation_warnings,
    make_contiguous,
)
from attnbench.masks import softmax_over_visible

__all__ = ["COMPILED", "CORE_COMPILED", "compiled"]

# CPU seconds to compile the formula for one kind of call (see ``_Kind``), measured over 24 kinds of
# calls with an empty compiler cache on a 2-core x86-64 machine (torch 2.13).
COMPILING_S = 3.4
# In all checks of the suite ``quick``, by dtype: KINDS is the number of kinds of calls that are
# compiled, and CALLS is the number of calls. In float32, more calls are of the same kind than in
# other dtypes.
KINDS, CALLS = {"float32": 32, "other": 21}, {"float32": 2622, "other": 902}
# Sizes of the tensors with which the formula is compiled: batch·heads, queries, keys, head_dim,
# head_dim_v. The sizes are typical, because Inductor decides by the sizes how threads divide a
# loop. All sizes are different, because torch would assume that two dimensions of equal size are
# equal in every call.
SIZES = (96, 120, 136, 40, 56)
_Attention = Callable[..., tuple[Tensor, Tensor | None]]


def compiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention by the compiled formula; ``mask`` is additive.

    Shape: q (batch, heads, queries, head_dim), k (batch, heads, keys, head_dim), v (batch, heads, keys, head_dim_v),
    mask broadcastable to (batch, heads, queries, keys).
    """
    heads = q.shape[:2]
    flat = [make_contiguous(x.flatten(0, 1)) for x in (q, k, v)]
    mask = None if mask is None else make_contiguous(_flatten_mask(mask, heads))
    if torch.is_grad_enabled() and any(x.requires_grad for x in flat):
        # If one of q, k and v requires a gradient, let all three require gradients. There are then
        # fewer kinds of calls to compile.
        flat = [x if x.requires_grad else x.detach().requires_grad_() for x in flat]
    tracked = tuple(torch.is_grad_enabled() and x is not None and x.requires_grad for x in (*flat, mask))
    kind = _Kind(
        dtype=q.dtype,
        device=q.device,
        tracked=tracked,
        ones=tuple(size == 1 for size in (*flat[0].shape[:2], *k.shape[2:], v.shape[3])),
        mask=None if mask is None else tuple(size == 1 for size in mask.shape),
        # Whether the compiled formula returns the attention weights. The formula always computes
        # the weights, and returning the weights costs nothing if there are no gradients.
        weights=need_weights or not any(tracked),
        dropout_p=dropout_p,
        autocast=torch.is_autocast_enabled(q.device.type),
        inference=torch.is_inference_mode_enabled(),
    )
    attend: _Attention = _compile_for(kind) if 0 not in (*flat[0].shape, k.shape[2]) else _attend
    output, weights = attend(*flat, mask, scale, dropout_p, kind.weights)
    whole = torch.unflatten(weights, 0, heads) if weights is not None and need_weights else None
    return torch.unflatten(output, 0, heads), whole


def _flatten_mask(mask: Tensor, heads: tuple[int, ...]) -> Tensor:
    """Return the mask with batch and heads flattened; a dimension that the mask broadcasts over keeps size 1.

    Shape: returns (1 or batch·heads, 1 or queries, keys).
    """
    mask = mask[(None,) * (4 - mask.dim())]
    return mask[0] if mask.shape[:2] == (1, 1) else mask.expand(*heads, -1, -1).flatten(0, 1)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    need_weights: bool,  # noqa: FBT001
) -> tuple[Tensor, Tensor | None]:
    """Compute attention by the formula; ``_compile_for`` compiles this function."""
    logits = (q * scale) @ k.transpose(1, 2)  # (batch·heads, queries, keys)
    weights = torch.softmax(logits, dim=-1) if mask is None else softmax_over_visible(logits + mask)
    if dropout_p:
        weights = torch.nn.functional.dropout(weights, dropout_p)
    return weights @ v, weights if need_weights else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A kind of call: calls that differ in a field of this class need different compiled code."""

    dtype: torch.dtype
    device: torch.device
    # Whether each of q, k, v and mask requires a gradient.
    tracked: tuple[bool, ...]
    # Whether each of these sizes is 1: batch·heads, queries, keys, head_dim, head_dim_v.
    ones: tuple[bool, ...]
    # Whether each dimension of the mask has size 1; None if there is no mask.
    mask: tuple[bool, ...] | None
    weights: bool
    dropout_p: float
    autocast: bool
    inference: bool


@cache
def _compile_for(kind: _Kind) -> _Attention:
    """Return the formula, compiled for a kind of call with tensors of any size.

    torch.compile compiles at the first call, so the formula is called here once, on zeros.
    """
    whole: _Attention = compile_copy(_attend)
    rows, queries, keys, width, wide = (1 if one else size for one, size in zip(kind.ones, SIZES, strict=True))
    shapes: list[tuple[int, ...]] = [(rows, queries, width), (rows, keys, width), (rows, keys, wide)]
    if kind.mask is not None:
        shapes.append(tuple(1 if one else size for one, size in zip(kind.mask, (rows, queries, keys), strict=True)))
    tensors: list[Tensor | None] = [
        torch.zeros(shape, dtype=kind.dtype, device=kind.device).requires_grad_(tracks)
        for shape, tracks in zip(shapes, kind.tracked, strict=False)
    ]
    tensors += [None] * (4 - len(tensors))
    # The call below draws random numbers for dropout. fork_rng then restores the state of the
    # random number generator. The dropout of a user's call is therefore the same, whether or not
    # the call is the first of its kind.
    devices = [kind.device] if kind.device.type == "cuda" else []
    # Keep backward from overwriting the tensors that forward saved, so that backward can run twice after one forward
    # pass, as in any module. Torch reads this setting when it compiles and again when backward runs.
    functorch_settings.donated_buffer = False
    with torch.random.fork_rng(devices=devices), ignore_deprecation_warnings():
        output, _ = whole(*tensors, 0.5, kind.dropout_p, kind.weights)
        if output.requires_grad:
            leaves = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
            torch.autograd.grad(output.sum(), leaves)
    return whole


def predict_call_s(case: Case) -> float | None:
    """Return the expected seconds of a call on a CPU, or None for a case on another device.

    The expected time is the time to compile all kinds of calls, divided by the number of calls.
    """
    which = "float32" if case.dtype == "float32" else "other"
    return KINDS[which] * COMPILING_S / CALLS[which] if case.device == "cpu" else None


COMPILED = from_kernel(
    compiled,
    source="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    # A transform of torch.func cannot look into a compiled function.
    policies=Policies(transforms="refused"),
    additive_mask=True,
    unsupported=explain_compiler_refusal,
    predicted_s=predict_call_s,
    environment=get_compiler_environment,
    compiles=True,
)
CORE_COMPILED = core_from_kernel(COMPILED, unsupported=explain_compiler_refusal, predicted_s=predict_call_s)
