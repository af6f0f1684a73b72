"""What functions that torch compiles by themselves have in common: code and tensors that it compiles once for.

Compiling takes seconds, so it is done once for each kind of call, before the call itself, and for any sizes. Torch
compiles a piece of code at most eight times before it gives up on it: each kind therefore has a copy of the code to
itself, and is handed tensors of one form.
"""

import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case

__all__ = ["compiled_copy", "compiler_refusal", "environment", "own", "quiet"]


def compiled_copy(function: Any) -> Callable[..., Any]:
    """The function, without closure or defaults, as code of its own under ``torch.compile``, for any sizes."""
    copy = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    compiled: Callable[..., Any] = torch.compile(copy, fullgraph=True, dynamic=True)
    return compiled


@contextmanager
def quiet() -> Iterator[None]:
    """Around a first call: torch's warnings of its own code, said when that is first imported, are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def own(x: Tensor) -> Tensor:
    """The same numbers one after another, in a tensor that is no view.

    Torch compiles anew for each form of what a view is of, and for each stride that a dimension of size 1 may have.
    """
    x = x.contiguous()
    if torch.is_grad_enabled() and x.requires_grad:
        return x.clone(memory_format=torch.contiguous_format) if x._is_view() else x  # noqa: SLF001  # no public word
    steps = [math.prod(x.shape[dimension:]) for dimension in range(1, x.dim() + 1)]
    return x.as_strided(x.shape, steps).detach()


def compiler_refusal(case: Case) -> str | None:
    """Why a case cannot be compiled for, or None."""
    if case.compiler is not None:
        return "it is compiled already"
    if case.device == "cuda" and not torch.cuda.is_available():
        return "no CUDA device"
    if case.device == "cpu" and not any(shutil.which(name) for name in ("g++", "clang++")):
        return "torch.compile needs a C++ compiler on a CPU: install g++"
    return None


def environment() -> Mapping[str, str]:
    """Compiled where it is asked for, one after another: no processes of torch's own wait beside what is timed."""
    return {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
