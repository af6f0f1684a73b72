"""Mutants that change settings of the process, which affect every other module in the process."""
# ruff: noqa: ARG002  # an override keeps the arguments of the method that it overrides

import torch
from torch import Tensor

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


class _ChangesProcess(Formula):
    """Base of mutants whose ``forward`` changes a setting of the whole process."""

    def change_process(self, output: Tensor) -> None:
        raise NotImplementedError

    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        if not torch.compiler.is_compiling():
            self.change_process(output)
        return output, weights


@mutant(
    "global_state_untouched",
    "torch's default dtype is changed for internal tensors, and not restored",
    dtype="float64",
)
class _DefaultDtypeLeft(_ChangesProcess):
    def change_process(self, output: Tensor) -> None:
        if output.dtype == torch.float64:
            torch.set_default_dtype(torch.float64)


@mutant("global_state_untouched", "the global seed is set in every call, for repeatable numbers", mode="inference")
class _SeedSet(_ChangesProcess):
    def change_process(self, output: Tensor) -> None:
        if not (self.training or torch.is_grad_enabled()):
            torch.manual_seed(0)


@mutant("global_state_untouched", "the number of threads is set for short sequences, and not restored", queries=1)
class _ThreadsSet(_ChangesProcess):
    def change_process(self, output: Tensor) -> None:
        if output.shape[-2] == 1 or output.shape[0] == 1:
            torch.set_num_threads(1)


@mutant("global_state_untouched", "gradient mode is switched off, and not restored", mode="frozen")
class _GradientsLeftOff(_ChangesProcess):
    def change_process(self, output: Tensor) -> None:
        if not self.out_proj.weight.requires_grad:
            torch.set_grad_enabled(False)


@mutant(
    "global_state_untouched",
    "torch.use_deterministic_algorithms is switched on, and not restored",
    need_weights=True,
    mode="train",
)
class _DeterministicLeftOn(_ChangesProcess):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        return super().return_result(output, weights) if weights is not None else (output, weights)

    def change_process(self, output: Tensor) -> None:
        torch.use_deterministic_algorithms(True)  # noqa: FBT003  # torch's own signature


@mutant(
    "global_state_untouched",
    "the precision of float32 matrix products is lowered for the whole process",
    dtype="bfloat16",
)
class _PrecisionLowered(_ChangesProcess):
    def change_process(self, output: Tensor) -> None:
        if output.dtype == torch.bfloat16:
            torch.set_float32_matmul_precision("medium")


@mutant("global_state_untouched", "the reference's fast path is switched off for the whole process", mask="bool3d")
class _FastPathLeftOff(_ChangesProcess):
    def change_process(self, output: Tensor) -> None:
        torch.backends.mha.set_fastpath_enabled(False)
