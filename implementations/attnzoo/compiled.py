"""The plain formula under ``torch.compile``: scale, mask, softmax and dropout become few loops over memory.

O = softmax(scale · Q Kᵀ + M) V over the last two dimensions; masks broadcast over the first two. The two products stay
what they are; Inductor writes what is between them as C++ (on CUDA, as Triton), first for the lengths that it meets,
then once more for any.

Torch compiles a piece of code at most eight times before it gives up on it, and runs it as it is written. Each kind of
call therefore has a copy of the formula to itself; beyond eight the call raises, and nothing else runs in its place.

Shape: Q (batch, heads, queries, head_dim), K and V (batch, heads, keys, head_dim).
Source: https://docs.pytorch.org/docs/stable/generated/torch.compile.html;
Ansel et al., PyTorch 2, 2024, https://doi.org/10.1145/3620665.3640366.
"""

import shutil
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Call, Inputs
from attnbench.kernel import from_kernel
from attnbench.masks import softmax_over_visible

__all__ = ["COMPILED", "compiled", "refusal"]

# Compiled where they are asked for, one after another: no processes of torch's own that wait beside what is timed.
ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


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
    """Attention by the compiled formula; ``mask`` is additive."""
    tracked = torch.is_grad_enabled() and tuple(x is not None and x.requires_grad for x in (q, k, v, mask))
    form = None if mask is None else tuple(size == 1 for size in mask.shape)
    attend = _compiled((q.dtype, q.device, tracked, form, need_weights, scale, dropout_p))
    output, weights = attend(q, k, v, mask, scale, dropout_p)
    return output, weights if need_weights else None


def _attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, dropout_p: float
) -> tuple[Tensor, Tensor]:
    """What is compiled."""
    logits = (q * scale) @ k.transpose(2, 3)  # (batch, heads, queries, keys)
    if mask is not None:
        logits = logits + mask
    weights = torch.nn.functional.dropout(softmax_over_visible(logits), dropout_p)
    return weights @ v, weights


@cache
def _compiled(kind: tuple[Any, ...]) -> Callable[..., tuple[Tensor, Tensor]]:  # noqa: ARG001  # one copy for each
    """The formula as code of its own, compiled when it is called."""
    copy = FunctionType(_attention.__code__.replace(), _attention.__globals__, _attention.__name__)
    whole: Callable[..., tuple[Tensor, Tensor]] = torch.compile(copy, fullgraph=True)
    return whole


def refusal(case: Case) -> str | None:
    """Why a case is not compiled, or None."""
    if case.compiler is not None:
        return "it is compiled already"
    if case.device == "cuda" and not torch.cuda.is_available():
        return "no CUDA device"
    if case.device == "cpu" and not any(shutil.which(name) for name in ("g++", "clang++")):
        return "torch.compile needs a C++ compiler on a CPU: install g++"
    return None


def prepare(module: Any, case: Case, inputs: Inputs) -> Call:  # noqa: ARG001  # a module serves every case
    """The module, after one pass in which it is compiled."""
    output = module(**inputs.arguments())[0]
    if output.requires_grad:
        leaves = [tensor for tensor in inputs.tensors.values() if tensor.requires_grad]
        leaves += [parameter for parameter in module.parameters() if parameter.requires_grad]
        torch.autograd.grad(output.sum(), leaves, allow_unused=True)
    return module  # type: ignore[no-any-return]


COMPILED = from_kernel(
    compiled,
    source="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    additive_mask=True,
    unsupported=refusal,
    environment=lambda: ENVIRONMENT,
    prepare=prepare,
)
