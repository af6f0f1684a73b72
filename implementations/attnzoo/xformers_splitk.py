"""xFormers' split-K kernel, written in Triton: compiled on CUDA, interpreted on a CPU.

The keys are split into chunks c. For each chunk a first kernel computes the largest logit m_c = max x_j, the sum
s_c = Σ_j exp(x_j − m_c) and the output o_c = Σ_j exp(x_j − m_c) v_j. A second kernel combines the chunks:

    O = Σ_c exp(m_c − m) o_c / Σ_c exp(m_c − m) s_c        with m = max m_c

The interpreted kernel was compared with attention in float64 (xformers 0.0.35, triton 3.7, 1 to 2000 keys). Results in
float16 and float32 are correct to rounding for head widths that are powers of two, with and without an additive mask.
Results in bfloat16 are wrong by a factor of 1e8, and float64 numbers are summed in float32. The widths and dtypes that
xFormers reports as supported are those of the compiled kernel.

Shape: Q (batch, queries, heads, head_dim), K and V (batch, keys, heads, head_dim),
M (batch, heads, queries, keys).
Source: https://github.com/facebookresearch/xformers/blob/main/xformers/ops/fmha/triton_splitk.py;
Dao et al., Flash-Decoding, 2023, https://crfm.stanford.edu/2023/10/12/flashdecoding.html.
"""

import importlib.util
import math
import os
import warnings
from contextlib import nullcontext
from importlib import metadata
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Policies, Refusal
from attnbench.kernel import core_from_kernel, from_kernel
from attnbench.kernel.optional_packages import explain_import, import_package
from attnbench.refusals import (
    CannotCompile,
    Interpreted,
    LacksDevice,
    NeedsDtype,
    NeedsEqualSizes,
    NeedsPackage,
    NeedsVariable,
    OtherRefusal,
    TypedRefusal,
    UnsupportedSize,
    write_install_line,
)

__all__ = ["CORE_XFORMERS_SPLITK", "XFORMERS_SPLITK", "explain_core_refusal", "explain_refusal", "xformers_splitk"]

# Module of xFormers that is called, and what it must have.
FMHA = ("xformers.ops.fmha", ("Inputs", "triton_splitk"))
INTERPRET = "TRITON_INTERPRET"
NOT_BUILT = "xFormers wasn't build with CUDA support"
AS_WIDE = NeedsEqualSizes(names=("value_dim", "head_dim"))
# Seconds that Triton's interpreter takes for 16 queries and 64 keys of one head. The measurement:
# 36 times this work, at a head width of 32, took 0.23 s with triton 3.7 on one thread of a 2-core
# x86-64 machine.
INTERPRETED_S = 6.5e-3
# INTERPRETED_S is the time for QUERIES_A_PROGRAM queries and KEYS_A_STEP keys of one head.
QUERIES_A_PROGRAM, KEYS_A_STEP = 16, 64
# Dtypes in which Triton's interpreter computes the same results as the compiled kernel.
INTERPRETED_DTYPES = ("float16", "float32")

# Held while Triton's interpreter runs: it keeps the index in the grid in one object of the process, so two kernels at
# the same time would write to one another's rows.
_INTERPRETER = Lock()


def xformers_splitk(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
    """Compute attention by ``xformers.ops.fmha.triton_splitk.FwOp``; ``mask`` is additive."""
    if _is_interpreted() and str(q.dtype).removeprefix("torch.") not in INTERPRETED_DTYPES:
        raise Refusal(NeedsDtype(dtypes=INTERPRETED_DTYPES, device="cpu"))
    if v.shape[-1] != k.shape[-1]:
        raise Refusal(AS_WIDE)
    fmha = import_package(*FMHA)
    bias = None if mask is None else mask.expand(*q.shape[:3], k.shape[2])
    rows = [x.transpose(1, 2) for x in (q, k, v)]  # (batch, length, heads, head_dim)
    inputs = fmha.Inputs(*rows, attn_bias=bias, scale=scale)
    if q.is_cuda and (reason := _find_reason(inputs)):
        raise Refusal(reason)
    with _INTERPRETER if _is_interpreted() else nullcontext(), warnings.catch_warnings():
        # Hide two warnings about Triton's deprecated block pointers and autotuner arguments, which
        # xFormers uses.
        warnings.filterwarnings("ignore", message="tl.make_block_ptr is deprecated")
        warnings.filterwarnings("ignore", message="warmup, rep, and use_cuda_graph parameters are deprecated")
        # Hide a warning: if a chunk has no visible key, the kernel computes −inf − (−inf) and
        # discards the result.
        warnings.filterwarnings("ignore", message="invalid value encountered", category=RuntimeWarning)
        # Call the class of the operator directly, because memory_efficient_attention refuses CPU
        # tensors.
        output, _ = fmha.triton_splitk.FwOp.apply(inputs, needs_gradient=False)
    return output.reshape(rows[0].shape).transpose(1, 2)  # type: ignore[no-any-return]


def explain_refusal(case: Case) -> TypedRefusal | None:
    """Return why the kernel does not compute a case, or None if it does.

    On CUDA, xFormers decides what the compiled kernel computes. On a CPU, the limits are those of
    Triton's interpreter.
    """
    packages = tuple(name for name in ("xformers", "triton") if importlib.util.find_spec(name) is None)
    if packages:
        return NeedsPackage(packages=packages, install=write_install_line("xformers"))
    fault = explain_import("triton.language") or explain_import(*FMHA)
    if fault:
        return fault
    if case.device == "cuda":
        return _explain_compiled_refusal(case)
    head_dim: int = case.problem.head_dim
    if not _is_interpreted():
        return NeedsVariable(name=INTERPRET, value="1")
    if case.compiler is not None:
        return CannotCompile(why="interpreter")
    if _read_version("triton") < (3, 7) and _read_version("numpy") >= (2, 4):
        return NeedsPackage(packages=("triton>=3.7",), install="pip install 'triton>=3.7'")
    if case.dtype not in INTERPRETED_DTYPES:
        return NeedsDtype(dtypes=INTERPRETED_DTYPES, device="cpu")
    if head_dim & (head_dim - 1):
        return UnsupportedSize(name="head_dim", power_of_two=True)
    if head_dim == 128:
        return UnsupportedSize(name="head_dim", excluded=(128,), device="cpu")
    return None


def explain_core_refusal(case: Case) -> TypedRefusal | None:
    """Return why the kernel does not compute a case of ``attention_core``, or None if it does."""
    if case.problem.value_dim != case.problem.head_dim:
        return AS_WIDE
    return explain_refusal(case)


def _explain_compiled_refusal(case: Case) -> TypedRefusal | None:
    if not torch.cuda.is_available():
        return LacksDevice(device="cuda")
    problem, dtype = case.problem, getattr(torch, case.dtype)
    rows = (
        torch.empty(problem.sequences, length, problem.num_heads, problem.head_dim, dtype=dtype, device=case.device)
        for length in (problem.queries, problem.columns, problem.columns)
    )
    return _find_reason(import_package(*FMHA).Inputs(*rows))


def _find_reason(inputs: Any) -> OtherRefusal | None:
    """Return xFormers' reason why the compiled kernel refuses the inputs, or None if it accepts them."""
    reasons = import_package(*FMHA).triton_splitk.FwOp.not_supported_reasons(inputs)
    # Ignore the reason that xFormers was built without CUDA code, because the Triton kernel needs
    # no such code.
    reason = next((reason for reason in reasons if reason != NOT_BUILT), None)
    return None if reason is None else OtherRefusal(text=reason, library="xformers")


def explain_untimed(case: Case) -> TypedRefusal | None:  # noqa: ARG001  # the signature of untimed
    """Return why no case is timed if the kernel is interpreted; return None if it is compiled."""
    return Interpreted(interpreter="Triton") if _is_interpreted() else None


def predict_call_s(case: Case) -> float | None:
    """Return the expected seconds of one interpreted call, or None if the kernel is compiled.

    The expected time is a constant for every 16 queries and 64 keys of each head.
    """
    problem = case.problem
    steps = math.ceil(problem.queries / QUERIES_A_PROGRAM) * math.ceil(problem.columns / KEYS_A_STEP)
    programs = problem.sequences * problem.num_heads * steps
    return float(programs) * INTERPRETED_S if _is_interpreted() else None


def _read_version(package: str) -> tuple[int, int]:
    """Return the major and minor version of an installed package."""
    major, minor = metadata.version(package).split(".")[:2]
    return int(major), int(minor)


def _is_interpreted() -> bool:
    return os.environ.get(INTERPRET) == "1"


def get_environment() -> dict[str, str]:
    """Return the environment variable that makes Triton interpret kernels.

    Triton reads the variable when xFormers' kernels are imported. If there is a CUDA device, return
    an empty dict.
    """
    return {} if torch.cuda.is_available() else {INTERPRET: "1"}


XFORMERS_SPLITK = from_kernel(
    xformers_splitk,
    source="https://github.com/facebookresearch/xformers/blob/main/xformers/ops/fmha/triton_splitk.py",
    # The kernel has no batching rule and no derivative.
    policies=Policies(forward_only=True, transforms="refused"),
    additive_mask=True,
    unsupported=explain_refusal,
    untimed=explain_untimed,
    predicted_s=predict_call_s,
    environment=get_environment,
)
CORE_XFORMERS_SPLITK = core_from_kernel(
    XFORMERS_SPLITK, unsupported=explain_core_refusal, untimed=explain_untimed, predicted_s=predict_call_s
)
