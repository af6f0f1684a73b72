"""Kernels as implementations of multi-head attention: a plain function in a module with the reference's forward."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Policies
from attnbench.interface.conventions import Convention
from attnbench.kernel.declarations import DeclaredKernel, KernelFunction
from attnbench.kernel.heads import HeadSplitAttention
from attnbench.masks import additive
from attnbench.refusals import Restriction, TypedRefusal

__all__ = ["Kernel", "from_kernel"]


class _KernelAttention(HeadSplitAttention):
    """Multi-head attention in which a plain function computes attention on split heads."""

    def __init__(self, reference: nn.MultiheadAttention, kernel: "Kernel") -> None:
        super().__init__(reference)
        self._kernel = kernel

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        is_causal = is_causal and self._kernel.takes("is_causal") and self._kernel.aligns(q.shape[-2], k.shape[-2])
        if is_causal:
            mask = None
        elif mask is not None and (self._kernel.additive_mask or mask.dtype != torch.bool):
            # An additive mask has the dtype of the module's input ``query``. Under autocast q has a narrower dtype, so
            # the mask is converted.
            mask = additive(mask, q.dtype) if mask.dtype == torch.bool else mask.to(q.dtype)
        dropout_p = self.dropout if self.training else 0.0
        offered = {
            "mask": mask,
            "is_causal": is_causal,
            "scale": 1.0 / math.sqrt(self.head_dim),
            "dropout_p": dropout_p,
            "need_weights": need_weights,
        }
        needs = {"mask": mask is not None, "dropout_p": dropout_p > 0, "need_weights": need_weights}
        output, weights = self._kernel.call_function(q, k, v, needs=needs, offered=offered)
        return output, weights if need_weights else None


class Kernel(DeclaredKernel):
    """A kernel as an implementation of multi-head attention; see ``from_kernel``."""

    def aligns(self, queries: int, keys: int) -> bool:
        """Whether the function's causal flag lets query i see keys 0 to i, as the reference's causal mask does."""
        return self.policies.causal == "top_left" or queries == keys

    def fits_convention(self, case: Case) -> Mapping[Restriction, bool]:
        """Return, for each restriction of a convention, whether the call of this case satisfies it."""
        problem = case.problem
        return {
            "causal": self._flag_suffices(case),
            "boolean_masks": not problem.additive_masks,
            "equal_shapes": problem.columns == problem.queries,
        }

    def _flag_suffices(self, case: Case) -> bool:
        """Whether the function may be called with ``is_causal=True`` and without a mask."""
        problem = case.problem
        return (
            problem.is_causal
            and not problem.padding_mask
            and problem.columns == problem.keys
            and self.aligns(problem.queries, problem.keys)
        )

    def needs(self, case: Case) -> Mapping[str, bool]:
        """Return, for each of ``need_weights``, ``dropout_p`` and ``mask``, whether the case needs this keyword."""
        problem = case.problem
        return {
            "need_weights": problem.need_weights,
            "dropout_p": problem.dropout > 0 and case.training,
            "mask": problem.mask != "none" and not (self._flag_suffices(case) and self.takes("is_causal")),
        }

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Return a module with the reference's forward and parameters, in which the function computes attention."""
        return _KernelAttention(reference, self)


def from_kernel(
    function: KernelFunction,
    *,
    name: str = "",
    source: str = "",
    policies: Policies | None = None,
    additive_mask: bool = False,
    convention: Convention | None = None,
    unsupported: Callable[[Case], TypedRefusal | str | None] | None = None,
    untimed: Callable[[Case], TypedRefusal | str | None] | None = None,
    predicted_s: Callable[[Case], float | None] | None = None,
    environment: Callable[[], Mapping[str, str]] | None = None,
    compiles: bool = False,
) -> Kernel:
    """Make an implementation of multi-head attention from a plain function.

    The function is called as ``function(q, k, v, **keywords)``. Of the keywords ``mask``, ``is_causal``, ``scale``,
    ``dropout_p`` and ``need_weights`` it gets those that its signature has. A case is refused if it needs a keyword
    that the signature lacks. The function returns the output, or the output and the attention weights. ``mask`` is
    boolean with true = keep, or additive; with ``additive_mask`` it is always additive. ``is_causal`` is true only if
    there are no extra key columns (bias_k, add_zero_attn). If ``is_causal`` is true, ``mask`` is None. A function that
    is called in another way declares its ``convention``.

    Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim), mask broadcastable to
    (batch, heads, queries, keys), output like q, weights (batch, heads, queries, keys).
    """
    declared = convention or Convention()
    return Kernel(
        function,
        name=name or function.__name__,
        source=source,
        policies=policies or Policies(),
        convention=replace(declared, masks="additive") if additive_mask else declared,
        unsupported=unsupported,
        untimed=untimed,
        predicted_s=predicted_s,
        environment=environment,
        compiles=compiles,
    )
