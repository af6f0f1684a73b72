"""The plain formula under ``torch.compile``: scale, mask, softmax and dropout become few loops over memory.

O = softmax(scale · Q Kᵀ + M) V for each of batch·heads. The two products stay what they are; Inductor writes what is
between them as C++ (on CUDA, as Triton).

It is compiled once for each kind of call (precision, gradients, form of the mask, sizes of one) and for any sizes.
Where torch gives up on compiling, the call raises; nothing else runs in its place. Of a call without any query or key
there is nothing to compile. Torch's setting ``donated_buffer`` is switched off for the whole process, so that backward
can be asked twice of the same forward pass.

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
from attnbench.kernel import core_from_kernel, from_kernel
from attnbench.kernel.compiling import compiled_copy, compiler_refusal, environment, own, quiet
from attnbench.masks import softmax_over_visible

__all__ = ["COMPILED", "CORE_COMPILED", "compiled"]

# Seconds of CPU that a kind of call takes to compile, over 24 of them with an empty cache on a 2-core x86-64 machine
# (torch 2.13); kinds that the checks of the suite quick come to and calls that they make, in float32, whose cases share
# most of them, and in the other precisions.
COMPILING_S = 3.4
KINDS, CALLS = {"float32": 32, "other": 21}, {"float32": 2622, "other": 902}
# Sizes that a kind is compiled with: those of a common call, by which Inductor decides how threads share a loop, and no
# two alike, or it would take them for one. Batch·heads, queries, keys, head_dim, width of values.
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
    """Attention by the compiled formula; ``mask`` is additive.

    Shape: q (batch, heads, queries, head_dim), k (batch, heads, keys, head_dim), v (batch, heads, keys, head_dim_v),
    mask broadcastable to (batch, heads, queries, keys).
    """
    heads = q.shape[:2]
    flat = [own(x.flatten(0, 1)) for x in (q, k, v)]
    mask = None if mask is None else own(_flat(mask, heads))
    if torch.is_grad_enabled() and any(x.requires_grad for x in flat):
        # Those of one are computed for all, rather than compiled for.
        flat = [x if x.requires_grad else x.detach().requires_grad_() for x in flat]
    tracked = tuple(torch.is_grad_enabled() and x is not None and x.requires_grad for x in (*flat, mask))
    kind = _Kind(
        dtype=q.dtype,
        device=q.device,
        tracked=tracked,
        ones=tuple(size == 1 for size in (*flat[0].shape[:2], *k.shape[2:], v.shape[3])),
        mask=None if mask is None else tuple(size == 1 for size in mask.shape),
        # Without gradients they cost nothing: they are there in any case.
        weights=need_weights or not any(tracked),
        dropout_p=dropout_p,
        autocast=torch.is_autocast_enabled(q.device.type),
        inference=torch.is_inference_mode_enabled(),
    )
    attend: _Attention = _compiled(kind) if 0 not in (*flat[0].shape, k.shape[2]) else _attention
    output, weights = attend(*flat, mask, scale, dropout_p, kind.weights)
    whole = torch.unflatten(weights, 0, heads) if weights is not None and need_weights else None
    return torch.unflatten(output, 0, heads), whole


def _flat(mask: Tensor, heads: tuple[int, ...]) -> Tensor:
    """Mask (1 or batch·heads, 1 or queries, keys); what is the same for all is still there once."""
    mask = mask[(None,) * (4 - mask.dim())]
    return mask[0] if mask.shape[:2] == (1, 1) else mask.expand(*heads, -1, -1).flatten(0, 1)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    need_weights: bool,  # noqa: FBT001
) -> tuple[Tensor, Tensor | None]:
    """What is compiled."""
    logits = (q * scale) @ k.transpose(1, 2)  # (batch·heads, queries, keys)
    weights = torch.softmax(logits, dim=-1) if mask is None else softmax_over_visible(logits + mask)
    if dropout_p:
        weights = torch.nn.functional.dropout(weights, dropout_p)
    return weights @ v, weights if need_weights else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What torch compiles anew for."""

    dtype: torch.dtype
    device: torch.device
    # Which of q, k, v and mask take gradients.
    tracked: tuple[bool, ...]
    # Which of batch·heads, queries, keys, head_dim and width of values are 1; of the mask's dimensions, None: no mask.
    ones: tuple[bool, ...]
    mask: tuple[bool, ...] | None
    weights: bool
    dropout_p: float
    autocast: bool
    inference: bool


@cache
def _compiled(kind: _Kind) -> _Attention:
    """The formula as code of its own, compiled for any sizes by a call with some."""
    whole: _Attention = compiled_copy(_attention)
    rows, queries, keys, width, wide = (1 if one else size for one, size in zip(kind.ones, SIZES, strict=True))
    shapes: list[tuple[int, ...]] = [(rows, queries, width), (rows, keys, width), (rows, keys, wide)]
    if kind.mask is not None:
        shapes.append(tuple(1 if one else size for one, size in zip(kind.mask, (rows, queries, keys), strict=True)))
    tensors: list[Tensor | None] = [
        torch.zeros(shape, dtype=kind.dtype, device=kind.device).requires_grad_(tracks)
        for shape, tracks in zip(shapes, kind.tracked, strict=False)
    ]
    tensors += [None] * (4 - len(tensors))
    # Dropout draws, and a call's own numbers are to be what they are whether or not it is compiled for.
    devices = [kind.device] if kind.device.type == "cuda" else []
    # What backward is given it may not overwrite: then it can be asked again of the same pass, as of any other module.
    # Torch looks at this both when it compiles and when it is asked.
    functorch_settings.donated_buffer = False
    with torch.random.fork_rng(devices=devices), quiet():
        output, _ = whole(*tensors, 0.5, kind.dropout_p, kind.weights)
        if output.requires_grad:
            leaves = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
            torch.autograd.grad(output.sum(), leaves)
    return whole


def predicted_s(case: Case) -> float | None:
    """Seconds of one call on a CPU, with its share of what its kinds take to compile."""
    which = "float32" if case.dtype == "float32" else "other"
    return KINDS[which] * COMPILING_S / CALLS[which] if case.device == "cpu" else None


COMPILED = from_kernel(
    compiled,
    source="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    additive_mask=True,
    unsupported=compiler_refusal,
    predicted_s=predicted_s,
    environment=environment,
    compiles=True,
)
CORE_COMPILED = core_from_kernel(COMPILED, unsupported=compiler_refusal, predicted_s=predicted_s)
