"""Shared code of kernels that call ``torch.compile`` themselves.

Compiling takes seconds. A kernel therefore compiles once for each kind of call (for example, float32 with
gradients), for dynamic sizes, before the first call of that kind. Torch compiles one code object at most eight times,
and then runs it in eager mode. The kernel therefore compiles a separate copy of the code for each kind of call. All
tensors are made contiguous, because torch compiles again for other strides.
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
from attnbench.devices import HOST, get_device
from attnbench.refusals import CannotCompile, LacksDevice, NeedsProgram, TypedRefusal

__all__ = [
    "compile_copy",
    "explain_compiler_refusal",
    "get_compiler_environment",
    "ignore_deprecation_warnings",
    "make_contiguous",
]

# Compilers of C++, of which ``torch.compile`` needs one on a CPU.
COMPILERS = ("g++", "clang++")


def compile_copy(function: Any) -> Callable[..., Any]:
    """Return a copy of a function, compiled for dynamic sizes; it must have neither a closure nor defaults."""
    copy = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    compiled: Callable[..., Any] = torch.compile(copy, fullgraph=True, dynamic=True)
    return compiled


@contextmanager
def ignore_deprecation_warnings() -> Iterator[None]:
    """Ignore DeprecationWarnings, which torch raises about its own modules when a first call imports them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def make_contiguous(x: Tensor) -> Tensor:
    """Return the tensor with contiguous strides, and not as a view; the data are copied only if necessary.

    Torch compiles again if the base tensor of a view is of another kind, or if a dimension of size 1 has another
    stride.
    """
    x = x.contiguous()
    if torch.is_grad_enabled() and x.requires_grad:
        return x.clone(memory_format=torch.contiguous_format) if x._is_view() else x  # noqa: SLF001  # no public name
    strides = [math.prod(x.shape[dimension:]) for dimension in range(1, x.dim() + 1)]
    return x.as_strided(x.shape, strides).detach()


def explain_compiler_refusal(case: Case) -> TypedRefusal | None:
    """Return the reason why a kernel cannot be compiled for a case, or None if it can be compiled."""
    if case.compiler is not None:
        return CannotCompile(why="compiled")
    if not get_device(case.device).is_available():
        return LacksDevice(device=case.device)
    if case.device == HOST and not any(map(shutil.which, COMPILERS)):
        return NeedsProgram(programs=COMPILERS)
    return None


def get_compiler_environment() -> Mapping[str, str]:
    """Return the environment variables that make torch compile in the calling process.

    Without these variables, torch compiles in a pool of processes, which stays alive while calls are timed.
    """
    return {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
