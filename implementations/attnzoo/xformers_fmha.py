"""xFormers' memory-efficient attention, computed by one of xFormers' CUDA kernels.

xFormers calls these kernels operators, and takes the first operator in its list that supports a call.

O = softmax(scale · Q Kᵀ + M) V with a mask M, block by block over the keys with a running maximum
and sum. The matrix of attention weights (queries, keys) is never stored.

Shape: Q (batch, queries, heads, head_dim), K and V (batch, keys, heads, head_dim),
M (batch, heads, queries, keys).
Source: https://facebookresearch.github.io/xformers/components/ops.html;
Rabe and Staats, Self-attention Does Not Need O(n²) Memory, 2021, https://arxiv.org/abs/2112.05682.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Policies
from attnbench.kernel import core_from_kernel, from_kernel
from attnbench.kernel.optional_packages import explain_import, import_package
from attnbench.masks import additive
from attnbench.refusals import (
    LacksDevice,
    NeedsDevice,
    NeedsDtype,
    NeedsPackage,
    OtherRefusal,
    TypedRefusal,
    write_install_line,
)

__all__ = ["CORE_XFORMERS", "XFORMERS", "explain_core_refusal", "explain_refusal", "xformers_fmha"]

# The CUDA operators load 16 bytes at a time: strides must be multiples of this number of elements, which is enough for
# all dtypes. The stride of the last dimension must be 1.
ALIGNED = 8
# Dtypes that xFormers' operators know. For any other dtype, the method not_supported_reasons of an
# operator raises KeyError.
DTYPES = ("float32", "bfloat16", "float16")
# Module of xFormers that is called, and what it must have.
FMHA = (
    "xformers.ops.fmha",
    ("memory_efficient_attention", "Inputs", "LowerTriangularMask", "flash3", "flash", "cutlass"),
)


def xformers_fmha(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, scale: float, dropout_p: float
) -> Tensor:
    """Compute attention by ``xformers.ops.memory_efficient_attention``."""
    fmha = import_package(*FMHA)
    bias = fmha.LowerTriangularMask() if is_causal else None
    empty = None
    if mask is not None:
        bias, empty = _unmask_empty_rows(mask, q.dtype)
        bias = _align_rows(bias, (*q.shape[:3], k.shape[2]))
    q, k, v = (_align_heads(x.transpose(1, 2)) for x in (q, k, v))  # (batch, length, heads, head_dim)
    output: Tensor = fmha.memory_efficient_attention(q, k, v, attn_bias=bias, p=dropout_p, scale=scale)
    output = output.transpose(1, 2)
    return output if empty is None else output.masked_fill(empty, 0.0)


def _unmask_empty_rows(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return an additive mask with 0 in fully masked rows, and a boolean mask of these rows.

    In a fully masked row, the kernel would divide 0 by 0.

    Shape: the boolean mask has a last dimension of size 1.
    """
    mask = additive(mask, dtype) if mask.dtype == torch.bool else mask
    empty = (mask == float("-inf")).all(dim=-1, keepdim=True)
    return mask.masked_fill(empty, 0.0), empty


def _align_heads(x: Tensor) -> Tensor:
    """Return a tensor whose rows of one head are stored as the operators need; it is copied where they are not."""
    is_aligned = x.stride(-1) == 1 and all(stride % ALIGNED == 0 for stride in x.stride()[:-1])
    return x if is_aligned else x.clone(memory_format=torch.contiguous_format)


def _align_rows(bias: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Expand a bias to the full shape; its rows begin at multiples of ``ALIGNED`` elements."""
    keys = shape[-1]
    added = -keys % ALIGNED if keys else ALIGNED
    return torch.nn.functional.pad(bias.expand(shape), (0, added)).contiguous()[..., :keys]


def explain_refusal(case: Case) -> TypedRefusal | None:
    """Return why no operator of xFormers runs a case, or None if one does."""
    return _explain_probe_refusal(case, _make_probe)


def explain_core_refusal(case: Case) -> TypedRefusal | None:
    """Return why no operator of xFormers runs a case of ``attention_core``, or None if one does."""
    return _explain_probe_refusal(case, _make_core_probe)


def _explain_probe_refusal(case: Case, probe: Callable[[Case], Any]) -> TypedRefusal | None:
    if importlib.util.find_spec("xformers") is None:
        return NeedsPackage(packages=("xformers",), install=write_install_line("xformers"))
    if fault := explain_import(*FMHA):
        return fault
    fmha = import_package(*FMHA)
    if case.device == "cuda" and not torch.cuda.is_available():
        return LacksDevice(device="cuda")
    if case.device == "cuda" and case.dtype not in DTYPES:
        return NeedsDtype(dtypes=DTYPES)
    inputs = probe(case)
    operators = [fmha.flash3, fmha.flash, fmha.cutlass]
    passes = [[operator.FwOp for operator in operators]]
    if case.differentiates:
        passes.append([operator.BwOp for operator in operators])
    return next((reason for candidates in passes if (reason := _find_reason(candidates, inputs))), None)


def _make_probe(case: Case) -> Any:
    """Make uninitialised inputs with the shapes, dtype and bias that ``memory_efficient_attention`` gets in a case."""
    problem = case.problem
    dtype = getattr(torch, case.dtype)
    batch, heads, queries, keys = problem.sequences, problem.num_heads, problem.queries, problem.columns
    q, k, v = (
        torch.empty(batch, length, heads, problem.head_dim, dtype=dtype, device=case.device)
        for length in (queries, keys, keys)
    )
    bias = None
    if problem.is_causal and not problem.padding_mask and keys == problem.keys:
        bias = import_package(*FMHA).LowerTriangularMask()
    elif problem.mask != "none":
        numbers = torch.empty(1, 1, 1, 1, dtype=dtype, device=case.device)
        bias = _align_rows(numbers, (batch, heads, queries, keys)).requires_grad_(
            case.tracks_inputs and bool(problem.tracked_masks)
        )
    return import_package(*FMHA).Inputs(q, k, v, attn_bias=bias, p=problem.dropout if case.training else 0.0)


def _make_core_probe(case: Case) -> Any:
    """Make uninitialised inputs, as ``_make_probe`` does, for a case of ``attention_core``."""
    problem, dtype = case.problem, getattr(torch, case.dtype)
    batch, heads, queries, keys = problem.sequences, problem.num_heads, problem.queries, problem.keys
    widths = ((queries, problem.head_dim), (keys, problem.head_dim), (keys, problem.value_dim))
    q, k, v = (torch.empty(batch, n, heads, width, dtype=dtype, device=case.device) for n, width in widths)
    bias = None
    if problem.mask in ("causal_tl", "causal_br") and (problem.causal == "top_left" or queries == keys):
        bias = import_package(*FMHA).LowerTriangularMask()
    elif problem.parts:
        numbers = torch.empty(1, 1, 1, 1, dtype=dtype, device=case.device)
        bias = _align_rows(numbers, (batch, heads, queries, keys)).requires_grad_(
            case.tracks_inputs and bool(problem.additive_masks)
        )
    return import_package(*FMHA).Inputs(q, k, v, attn_bias=bias)


def _find_reason(operators: list[Any], inputs: Any) -> TypedRefusal | None:
    """Return why no operator takes the inputs, or None if an operator does.

    The result is the first reason that all operators share, or else the first reason of each operator.
    """
    devices = sorted({device for operator in operators for device in operator.SUPPORTED_DEVICES})
    if inputs.query.device.type not in devices:
        return NeedsDevice(devices=tuple(devices))
    reasons = {operator.NAME: operator.not_supported_reasons(inputs) for operator in operators}
    if not all(reasons.values()):
        return None
    first, *others = reasons.values()
    shared = [reason for reason in first if all(reason in other for other in others)]
    text = shared[0] if shared else "; ".join(f"{name}: {lacks[0]}" for name, lacks in reasons.items())
    return OtherRefusal(text=text, library="xformers")


XFORMERS = from_kernel(
    xformers_fmha,
    name="xformers",
    source="https://facebookresearch.github.io/xformers/components/ops.html",
    # The kernels have no batching rule and no derivative of forward mode.
    policies=Policies(transforms="refused", unordered_gradients=("cuda",)),
    unsupported=explain_refusal,
)
CORE_XFORMERS = core_from_kernel(XFORMERS, unsupported=explain_core_refusal)
