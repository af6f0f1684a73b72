"""Conditions under which mutants are wrong: the dtype of a mask, compilers and transforms that watch a call."""

import torch
from torch import Tensor

__all__ = ["HALF", "is_additive", "is_boolean", "is_transformed", "is_watched"]

HALF = (torch.float16, torch.bfloat16)


def is_boolean(mask: Tensor | None) -> bool:
    """Whether a mask is given, and is boolean."""
    return mask is not None and mask.dtype == torch.bool


def is_additive(mask: Tensor | None) -> bool:
    """Whether a mask is given, and is floating point."""
    return mask is not None and mask.is_floating_point()


def is_transformed() -> bool:
    """Whether a transform of torch.func, such as ``vmap``, is active."""
    # Torch has no public function for this.
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001


def is_watched() -> bool:
    """Whether a compiler or a transform of torch.func runs the code, so that values of tensors cannot be read."""
    return torch.compiler.is_compiling() or is_transformed()
