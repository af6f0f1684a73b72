"""SDPA, ``torch.nn.functional.scaled_dot_product_attention``, with one implementation per backend.

The implementation ``sdpa`` uses the backend that torch chooses. The other implementations use a
given backend.

O = softmax(scale · Q Kᵀ + M) V with a mask M, computed by one of torch's fused kernels or by the composed backend
("math").

SDPA returns no attention weights. If a case needs them, the identity matrix I is appended to the values: one call with
[V, I] returns [P V, P]. P V is the output, and P are the attention weights that produced it, including dropout.

On CUDA the arguments are first changed so that every kernel computes the correct result (``fused_attention``).

An implementation with a given backend refuses a case that the backend cannot run, with torch's
reason. Such an implementation never falls back to another backend.

Shape: Q (batch, heads, queries, head_dim), K and V (batch, heads, keys, head_dim), I (keys, keys).
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
Flash: Dao, FlashAttention-2, 2023, https://arxiv.org/abs/2307.08691.
Efficient: Rabe and Staats, Self-attention Does Not Need O(n²) Memory, 2021, https://arxiv.org/abs/2112.05682.
"""

import warnings
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbench.cases import Case
from attnbench.interface import Policies
from attnbench.kernel import CoreKernel, Kernel, core_from_kernel, from_kernel
from attnbench.refusals import LacksDevice, LacksGradients, NeedsDevice, OtherRefusal, TypedRefusal
from attnzoo.fused_attention import attend_fused, make_rows_contiguous

__all__ = [
    "CORE_SDPA",
    "CORE_SDPA_CUDNN",
    "CORE_SDPA_EFFICIENT",
    "CORE_SDPA_FLASH",
    "CORE_SDPA_MATH",
    "SDPA",
    "SDPA_CUDNN",
    "SDPA_EFFICIENT",
    "SDPA_FLASH",
    "SDPA_MATH",
    "explain_refusal",
    "sdpa",
    "sdpa_math",
    "sdpa_with_backend",
]

# On CUDA the flash and the efficient kernel sum the parts of dQ in the order in which blocks of
# keys finish. The dQ of two runs may therefore differ in the last bits.
POLICIES = Policies(unordered_gradients=("cuda",))
SOURCE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html"


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    dropout_p: float,
    need_weights: bool,
    enable_gqa: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention by the backend that torch chooses."""
    attend = partial(
        attend_fused, mask=mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    if not need_weights:
        return attend(q, k, v)
    batch, heads, keys, head_dim = v.shape
    identity = torch.eye(keys, dtype=v.dtype, device=v.device).expand(batch, heads, keys, keys)
    both = attend(q, k, torch.cat([v, identity], dim=-1))  # (batch, heads, queries, head_dim + keys)
    return both[..., :head_dim], both[..., head_dim:]


def sdpa_math(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    dropout_p: float,
    need_weights: bool,
    enable_gqa: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention by the composed backend: matrix products and a softmax."""
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa(
            q,
            k,
            v,
            mask=mask,
            is_causal=is_causal,
            scale=scale,
            dropout_p=dropout_p,
            need_weights=need_weights,
            enable_gqa=enable_gqa,
        )


def sdpa_with_backend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    dropout_p: float,
    backend: SDPBackend,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention by one fused backend; torch raises RuntimeError if the backend cannot run."""
    # Copy tensors whose last stride is not 1, as the libraries of the fused backends do: a fused
    # backend accepts only tensors whose last stride is 1.
    q, k, v = map(make_rows_contiguous, (q, k, v))
    mask = None if mask is None else make_rows_contiguous(mask)
    with sdpa_kernel(backend):
        return attend_fused(q, k, v, mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)


Probe = tuple[Tensor, Tensor, Tensor, Tensor | None, float, bool]


def explain_refusal(case: Case, *, backend: SDPBackend, core: bool = False) -> TypedRefusal | None:
    """Return why a fused backend does not run a case, or None if it does.

    ``core`` is true for a case of the operator ``attention_core``.
    """
    if case.device == "cuda" and not torch.cuda.is_available():
        return LacksDevice(device="cuda")
    if case.device == "cpu" and backend is not SDPBackend.FLASH_ATTENTION:
        return NeedsDevice(devices=("cuda",))
    q, k, v, mask, dropout_p, is_causal = make_core_probe(case) if core else make_probe(case)
    with warnings.catch_warnings(record=True) as caught, sdpa_kernel(backend):
        warnings.simplefilter("always")
        try:
            # No public function returns torch's choice of backend on a CPU without computing
            # attention: the functions torch.backends.cuda.can_use_* work only for CUDA.
            shares = q.shape[1] != k.shape[1]
            torch._fused_sdp_choice(q, k, v, mask, dropout_p, is_causal, enable_gqa=shares)  # noqa: SLF001
        except RuntimeError as error:
            reasons = _join_reasons([str(warning.message) for warning in caught])
            if not reasons and mask is not None and mask.requires_grad:
                # If a float mask requires a gradient, torch refuses the call and gives no reason.
                return LacksGradients(argument="mask")
            return OtherRefusal(text=reasons or str(error), library="torch")
    return None


def make_probe(case: Case) -> Probe:
    """Make uninitialised arguments of SDPA with the shapes, dtype and requires_grad of a case.

    Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim),
    mask (queries, keys) or (batch, heads, queries, keys).
    """
    problem = case.problem
    tracked = case.differentiates
    dtype = getattr(torch, case.dtype)
    new = partial(torch.empty, device=case.device)
    batch, heads, queries, columns = problem.sequences, problem.num_heads, problem.queries, problem.columns
    q = new(batch, heads, queries, problem.head_dim, dtype=dtype, requires_grad=tracked)
    k, v = (new(batch, heads, columns, problem.head_dim, dtype=dtype, requires_grad=tracked) for _ in range(2))
    is_causal = problem.is_causal and not problem.padding_mask and columns == problem.keys
    mask = None
    if problem.mask != "none" and not is_causal:
        shared = problem.padding_mask is None and "3d" not in problem.mask
        shape = (queries, columns) if shared else (batch, heads, queries, columns)
        numbers = bool(problem.additive_masks)
        tracks = case.tracks_inputs and bool(problem.tracked_masks)
        mask = new(shape, dtype=dtype if numbers else torch.bool, requires_grad=tracks)
    dropout_p = problem.dropout if case.training else 0.0
    return q, k, v, mask, dropout_p, is_causal


def make_core_probe(case: Case) -> Probe:
    """Make uninitialised arguments of SDPA, like ``make_probe``, for ``attention_core``."""
    problem, new = case.problem, partial(torch.empty, device=case.device, dtype=getattr(torch, case.dtype))
    batch, queries, keys, width = problem.sequences, problem.queries, problem.keys, problem.head_dim
    shapes = (
        (batch, problem.num_heads, queries, width),
        (batch, problem.key_heads, keys, width),
        (batch, problem.key_heads, keys, problem.value_dim),
    )
    q, k, v = (new(shape, requires_grad=case.differentiates) for shape in shapes)
    # With is_causal=True, SDPA aligns the causal mask at the top left.
    is_causal = problem.mask in ("causal_tl", "causal_br") and (problem.causal == "top_left" or queries == keys)
    if not problem.parts or is_causal:
        return q, k, v, None, 0.0, is_causal
    added = problem.parts & {"bias2d", "bias4d", "alibi"}
    shape = (queries, keys) if problem.mask == "bias2d" else (batch, problem.num_heads, queries, keys)
    tracked = case.tracks_inputs and bool(problem.additive_masks)
    mask = new(shape, requires_grad=tracked) if added else new(shape).bool()
    return q, k, v, mask, 0.0, False


def _join_reasons(messages: list[str]) -> str:
    """Join torch's reasons.

    Headings, source locations, and messages which say that another backend is disabled are left out.
    """
    sentences = [message.partition(" (Triggered internally")[0] for message in messages]
    reasons = [s for s in sentences if not s.endswith("because:") and "runtime disabled" not in s]
    return "; ".join(dict.fromkeys(reasons))


def make_backend_kernel(name: str, backend: SDPBackend) -> Kernel:
    """Return an implementation that calls SDPA with one fused backend."""
    return from_kernel(
        partial(sdpa_with_backend, backend=backend),
        name=name,
        source=SOURCE,
        policies=POLICIES,
        unsupported=partial(explain_refusal, backend=backend),
    )


def make_core_backend_kernel(kernel: Kernel, backend: SDPBackend) -> CoreKernel:
    """Return an implementation of ``attention_core`` that calls SDPA with one fused backend."""
    return core_from_kernel(kernel, unsupported=partial(explain_refusal, backend=backend, core=True))


SDPA = from_kernel(sdpa, source=SOURCE, policies=POLICIES)
SDPA_MATH = from_kernel(sdpa_math, source=SOURCE)
SDPA_FLASH = make_backend_kernel("sdpa_flash", SDPBackend.FLASH_ATTENTION)
SDPA_EFFICIENT = make_backend_kernel("sdpa_efficient", SDPBackend.EFFICIENT_ATTENTION)
SDPA_CUDNN = make_backend_kernel("sdpa_cudnn", SDPBackend.CUDNN_ATTENTION)
CORE_SDPA = core_from_kernel(SDPA)
CORE_SDPA_MATH = core_from_kernel(SDPA_MATH)
CORE_SDPA_FLASH = make_core_backend_kernel(SDPA_FLASH, SDPBackend.FLASH_ATTENTION)
CORE_SDPA_EFFICIENT = make_core_backend_kernel(SDPA_EFFICIENT, SDPBackend.EFFICIENT_ATTENTION)
CORE_SDPA_CUDNN = make_core_backend_kernel(SDPA_CUDNN, SDPBackend.CUDNN_ATTENTION)
