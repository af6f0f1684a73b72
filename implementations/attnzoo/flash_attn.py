"""Dao's FlashAttention kernels, from the package flash-attn: only on CUDA, only in float16 and bfloat16.

The kernels process the keys in blocks with a running maximum and sum, in registers and shared memory.

With causal=True, the kernels align the causal mask at the bottom right: the last query sees every
key. The reference of multi-head attention aligns the causal mask at the top left. The two alignments
give the same mask only if there are as many queries as keys. In multi-head attention, only cases
with as many queries as keys therefore use the argument.

Backward sums the parts of dQ in the order in which blocks of keys finish. The dQ of two runs may
therefore differ in the last bits.

Shape: Q (batch, queries, heads, head_dim), K and V (batch, keys, kv_heads, head_dim).
Source: https://github.com/Dao-AILab/flash-attention;
Dao, FlashAttention-2, 2023, https://arxiv.org/abs/2307.08691.
"""

import importlib.util

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Policies
from attnbench.kernel import core_from_kernel, from_kernel
from attnbench.kernel.optional_packages import explain_import, import_package
from attnbench.refusals import (
    LacksDevice,
    NeedsCapability,
    NeedsDevice,
    NeedsDtype,
    NeedsElements,
    NeedsEqualSizes,
    NeedsPackage,
    TypedRefusal,
    UnsupportedSize,
)

__all__ = ["CORE_FLASH_ATTN", "FLASH_ATTN", "explain_core_refusal", "explain_refusal", "flash_attn"]

# Limits of flash-attn 2, from the section "NVIDIA CUDA Support" of its README. DTYPES: supported
# dtypes. WIDEST_HEAD: largest head width. OLDEST_CAPABILITY: lowest CUDA compute capability.
DTYPES = ("float16", "bfloat16")
WIDEST_HEAD = 256
OLDEST_CAPABILITY = (8, 0)
# Module that is called, and its function.
FUNCTION = ("flash_attn", ("flash_attn_func",))


def flash_attn(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float, dropout_p: float, enable_gqa: bool = False
) -> Tensor:
    """Compute attention by ``flash_attn.flash_attn_func``.

    ``enable_gqa`` is ignored: the shapes of k and v show whether query heads share key heads.
    """
    del enable_gqa
    function = import_package(*FUNCTION).flash_attn_func
    rows = (x.transpose(1, 2) for x in (q, k, v))  # (batch, length, heads, head_dim)
    output: Tensor = function(*rows, dropout_p=dropout_p, softmax_scale=scale, causal=is_causal)
    return output.transpose(1, 2)


def explain_refusal(case: Case) -> TypedRefusal | None:
    """Return why flash-attn does not compute a case, or None if it does."""
    problem = case.problem
    if case.device != "cuda":
        return NeedsDevice(devices=("cuda",))
    if importlib.util.find_spec("flash_attn") is None:
        return NeedsPackage(packages=("flash-attn",), install="pip install flash-attn --no-build-isolation")
    if not torch.cuda.is_available():
        return LacksDevice(device="cuda")
    if fault := explain_import(*FUNCTION):
        return fault
    if torch.cuda.get_device_capability() < OLDEST_CAPABILITY:
        return NeedsCapability(least=OLDEST_CAPABILITY)
    if case.dtype not in DTYPES:
        return NeedsDtype(dtypes=DTYPES)
    if problem.head_dim > WIDEST_HEAD:
        return UnsupportedSize(name="head_dim", most=WIDEST_HEAD)
    if 0 in (problem.sequences, problem.queries, problem.columns):
        return NeedsElements()
    return None


def explain_core_refusal(case: Case) -> TypedRefusal | None:
    """Return why flash-attn does not compute a case of ``attention_core``, or None if it does."""
    reason = explain_refusal(case)
    if reason is None and case.problem.value_dim != case.problem.head_dim:
        return NeedsEqualSizes(names=("value_dim", "head_dim"))
    return reason


FLASH_ATTN = from_kernel(
    flash_attn,
    source="https://github.com/Dao-AILab/flash-attention",
    # The kernels have no batching rule and no derivative of forward mode.
    policies=Policies(causal="bottom_right", deterministic=False, transforms="refused"),
    unsupported=explain_refusal,
)
CORE_FLASH_ATTN = core_from_kernel(FLASH_ATTN, unsupported=explain_core_refusal)
