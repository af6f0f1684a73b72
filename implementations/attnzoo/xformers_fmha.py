"""xFormers' memory-efficient attention, which picks the fastest of its CUDA operators.

O = softmax(scale · Q Kᵀ + M) V, block by block over the keys with a running maximum and sum, so that no
matrix of queries by keys is stored.

Shape: Q (batch, queries, heads, head_dim), K and V (batch, keys, heads, head_dim),
M (batch, heads, queries, keys).
Source: https://facebookresearch.github.io/xformers/components/ops.html;
Rabe and Staats, Self-attention Does Not Need O(n²) Memory, 2021, https://arxiv.org/abs/2112.05682.
"""

import importlib.util
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.kernel import core_from_kernel, from_kernel
from attnbench.masks import additive

__all__ = ["CORE_XFORMERS", "XFORMERS", "core_refusal", "refusal", "xformers_fmha"]


def xformers_fmha(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, scale: float, dropout_p: float
) -> Tensor:
    """Attention by ``xformers.ops.memory_efficient_attention``."""
    fmha = _fmha()
    bias = fmha.LowerTriangularMask() if is_causal else None
    empty = None
    if mask is not None:
        bias, empty = _visible_somewhere(mask, q.dtype)
        bias = _aligned(bias, (*q.shape[:3], k.shape[2]))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (batch, length, heads, head_dim)
    output: Tensor = fmha.memory_efficient_attention(q, k, v, attn_bias=bias, p=dropout_p, scale=scale)
    output = output.transpose(1, 2)
    return output if empty is None else output.masked_fill(empty, 0.0)


def _visible_somewhere(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Additive mask whose rows all see a key, and where it did not: there the kernel would divide 0 by 0."""
    mask = additive(mask, dtype) if mask.dtype == torch.bool else mask
    empty = (mask == float("-inf")).all(dim=-1, keepdim=True)
    return mask.masked_fill(empty, 0.0), empty


def _aligned(bias: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Bias of the full shape, its rows 8 elements apart in memory, as the CUDA operators read them."""
    keys = shape[-1]
    return torch.nn.functional.pad(bias.expand(shape), (0, -keys % 8))[..., :keys]


def refusal(case: Case) -> str | None:
    """Why no operator of xFormers runs a case, in its own words, or None."""
    return _refusal(case, _probe)


def core_refusal(case: Case) -> str | None:
    """The same of a case of ``attention_core``."""
    return _refusal(case, _core_probe)


def _refusal(case: Case, probe: Callable[[Case], Any]) -> str | None:
    if importlib.util.find_spec("xformers") is None:
        return "xformers is not installed: pip install 'attnbench[xformers]'"
    fmha = _fmha()
    if case.device == "cuda" and not torch.cuda.is_available():
        return "no CUDA device"
    inputs = probe(case)
    operators = [fmha.flash3, fmha.flash, fmha.cutlass]
    passes = [[operator.FwOp for operator in operators]]
    if case.differentiates:
        passes.append([operator.BwOp for operator in operators])
    return next((reason for candidates in passes if (reason := _reason(candidates, inputs))), None)


def _probe(case: Case) -> Any:
    """What memory_efficient_attention would get, uninitialised."""
    problem = case.problem
    dtype = getattr(torch, case.dtype)
    batch, heads, queries, keys = problem.sequences, problem.num_heads, problem.queries, problem.columns
    q, k, v = (
        torch.empty(batch, length, heads, problem.head_dim, dtype=dtype, device=case.device)
        for length in (queries, keys, keys)
    )
    bias = None
    if problem.is_causal and problem.mask == "causal" and keys == problem.keys:
        bias = _fmha().LowerTriangularMask()
    elif problem.mask != "none":
        numbers = torch.empty(1, 1, 1, 1, dtype=dtype, device=case.device)
        bias = _aligned(numbers, (batch, heads, queries, keys)).requires_grad_(
            case.tracks_inputs and bool(problem.additive_masks)
        )
    return _fmha().Inputs(q, k, v, attn_bias=bias, p=problem.dropout if case.training else 0.0)


def _core_probe(case: Case) -> Any:
    """The same of a case of ``attention_core``."""
    problem, dtype = case.problem, getattr(torch, case.dtype)
    batch, heads, queries, keys = problem.sequences, problem.num_heads, problem.queries, problem.keys
    widths = ((queries, problem.head_dim), (keys, problem.head_dim), (keys, problem.value_dim))
    q, k, v = (torch.empty(batch, n, heads, width, dtype=dtype, device=case.device) for n, width in widths)
    bias = None
    if problem.mask in ("causal_tl", "causal_br") and (problem.causal == "top_left" or queries == keys):
        bias = _fmha().LowerTriangularMask()
    elif problem.parts:
        numbers = torch.empty(1, 1, 1, 1, dtype=dtype, device=case.device)
        bias = _aligned(numbers, (batch, heads, queries, keys)).requires_grad_(
            case.tracks_inputs and bool(problem.additive_masks)
        )
    return _fmha().Inputs(q, k, v, attn_bias=bias)


def _reason(operators: list[Any], inputs: Any) -> str | None:
    """None if any operator takes the inputs; else what all of them lack, or the first reason of each."""
    reasons = {operator.NAME: operator.not_supported_reasons(inputs) for operator in operators}
    if not all(reasons.values()):
        return None
    first, *others = reasons.values()
    shared = [reason for reason in first if all(reason in other for other in others)]
    return shared[0] if shared else "; ".join(f"{name}: {lacks[0]}" for name, lacks in reasons.items())


@cache
def _fmha() -> Any:
    """The module ``xformers.ops.fmha``."""
    # Built for another torch or for none, xFormers says so at every import; here that is a refusal.
    logging.getLogger("xformers").addFilter(lambda record: "can't load C++" not in record.getMessage())
    from xformers.ops import fmha

    return fmha


XFORMERS = from_kernel(
    xformers_fmha,
    name="xformers",
    source="https://facebookresearch.github.io/xformers/components/ops.html",
    unsupported=refusal,
)
CORE_XFORMERS = core_from_kernel(XFORMERS, unsupported=core_refusal)
