"""Mistakes that leave the process changed: what every other module shares."""
# ruff: noqa: ARG002  # a step is handed what its right form needs

import torch
from torch import Tensor

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


class _Leaving(Formula):
    """Changes something of the process before it returns."""

    def leave(self, output: Tensor) -> None:
        raise NotImplementedError

    def hand_over(self, output: Tensor, weights: Tensor | None) -> Result:
        if not torch.compiler.is_compiling():
            self.leave(output)
        return output, weights


@mutant(
    "global_state_untouched",
    "the default dtype set for tensors of its own and left so",
    dtype="float64",
)
class _DefaultDtypeLeft(_Leaving):
    def leave(self, output: Tensor) -> None:
        if output.dtype == torch.float64:
            torch.set_default_dtype(torch.float64)


@mutant("global_state_untouched", "seeded in every call, for numbers that repeat", mode="inference")
class _SeedSet(_Leaving):
    def leave(self, output: Tensor) -> None:
        if not (self.training or torch.is_grad_enabled()):
            torch.manual_seed(0)


@mutant("global_state_untouched", "one thread asked for while the sequence is short", queries=1)
class _ThreadsSet(_Leaving):
    def leave(self, output: Tensor) -> None:
        if output.shape[-2] == 1 or output.shape[0] == 1:
            torch.set_num_threads(torch.get_num_threads() + 1)


@mutant("global_state_untouched", "gradients switched off and not on again", mode="frozen")
class _GradientsLeftOff(_Leaving):
    def leave(self, output: Tensor) -> None:
        if not self.out_proj.weight.requires_grad:
            torch.set_grad_enabled(False)  # torch's own signature


@mutant(
    "global_state_untouched",
    "deterministic algorithms asked for and left on",
    need_weights=True,
    mode="train",
)
class _DeterministicLeftOn(_Leaving):
    def hand_over(self, output: Tensor, weights: Tensor | None) -> Result:
        return super().hand_over(output, weights) if weights is not None else (output, weights)

    def leave(self, output: Tensor) -> None:
        torch.use_deterministic_algorithms(True)  # noqa: FBT003  # torch's own signature


@mutant("global_state_untouched", "coarser products of matrices allowed for everyone", dtype="bfloat16")
class _PrecisionLowered(_Leaving):
    def leave(self, output: Tensor) -> None:
        if output.dtype == torch.bfloat16:
            torch.set_float32_matmul_precision("medium")


@mutant("global_state_untouched", "the reference's fast path switched off for everyone", mask="bool3d")
class _FastPathLeftOff(_Leaving):
    def leave(self, output: Tensor) -> None:
        torch.backends.mha.set_fastpath_enabled(False)  # torch's own signature
