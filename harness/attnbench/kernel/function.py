"""A plain function of split heads as a whole implementation."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies, Refusal, accepted
from attnbench.kernel.heads import HeadSplitAttention
from attnbench.masks import additive

__all__ = ["Kernel", "from_kernel"]

# fn(q, k, v, *, mask, is_causal, scale, dropout_p, need_weights) -> output, or (output, weights)
KernelFunction = Callable[..., Any]
FORWARD_ONLY = "forward only: no gradients"


class _KernelAttention(HeadSplitAttention):
    """Attention whose core is a plain function."""

    def __init__(self, reference: nn.MultiheadAttention, kernel: "Kernel") -> None:
        super().__init__(reference)
        self._kernel = kernel

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        takes = self._kernel.takes
        is_causal = is_causal and takes("is_causal") and self._kernel.aligns(q.shape[-2], k.shape[-2])
        if is_causal:
            mask = None
        elif mask is not None and (self._kernel.additive_mask or mask.dtype != torch.bool):
            # Under autocast q is narrower than the query that the mask was made for.
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
        reason = self._kernel.lacks(needs)
        if self._kernel.policies.forward_only and torch.is_grad_enabled() and (q.requires_grad or v.requires_grad):
            reason = FORWARD_ONLY
        if reason:
            raise Refusal(reason)
        returned = self._kernel.function(q, k, v, **{name: value for name, value in offered.items() if takes(name)})
        output, weights = returned if isinstance(returned, tuple) else (returned, None)
        return output, weights if need_weights else None


class Kernel(Implementation):
    """An implementation made from a function on head-split tensors; see ``from_kernel``."""

    def __init__(
        self,
        function: KernelFunction,
        *,
        name: str,
        source: str,
        policies: Policies,
        additive_mask: bool,
        unsupported: Callable[[Case], str | None] | None,
        untimed: Callable[[Case], str | None] | None,
        predicted_s: Callable[[Case], float | None] | None,
        environment: Callable[[], Mapping[str, str]] | None,
        compiles: bool,
    ) -> None:
        self.function = function
        self.name = name
        self.source = source
        self.policies = policies
        self.additive_mask = additive_mask
        self._unsupported = unsupported
        self._untimed = untimed
        self._predicted_s = predicted_s
        self._environment = environment
        self.compiles = compiles
        self._accepted = accepted(function)

    def takes(self, keyword: str) -> bool:
        """Whether the function's signature has this keyword."""
        return self._accepted is None or keyword in self._accepted

    def aligns(self, queries: int, keys: int) -> bool:
        """Whether its causal flag means what the contract says: query i sees keys 0 to i."""
        return self.policies.causal == "top_left" or queries == keys

    def lacks(self, needs: Mapping[str, bool]) -> str | None:
        """Which keyword is needed and not in the function's signature, as a reason, or None."""
        return next(
            (f"the kernel takes no {word}" for word, needed in needs.items() if needed and not self.takes(word)),
            None,
        )

    def unsupported(self, case: Case) -> str | None:
        """Refuse what needs a keyword that the function does not have, then what its author refuses."""
        problem = case.problem
        extra_columns = problem.add_bias_kv or problem.add_zero_attn
        flag_suffices = (
            problem.is_causal
            and problem.mask == "causal"
            and not extra_columns
            and self.aligns(problem.queries, problem.keys)
        )
        needs = {
            "need_weights": problem.need_weights,
            "dropout_p": problem.dropout > 0 and case.training,
            "mask": problem.mask != "none" and not (flag_suffices and self.takes("is_causal")),
        }
        if reason := self.lacks(needs):
            return reason
        if self.policies.forward_only and case.differentiates:
            return FORWARD_ONLY
        return self._unsupported(case) if self._unsupported else None

    def untimed(self, case: Case) -> str | None:
        """What its author says."""
        return self._untimed(case) if self._untimed else None

    def predicted_s(self, case: Case) -> float | None:
        """What its author predicts."""
        return self._predicted_s(case) if self._predicted_s else None

    def environment(self) -> Mapping[str, str]:
        """What its author asks for."""
        return self._environment() if self._environment else {}

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """The function inside the reference's module."""
        return _KernelAttention(reference, self)


def from_kernel(
    function: KernelFunction,
    *,
    name: str = "",
    source: str = "",
    policies: Policies | None = None,
    additive_mask: bool = False,
    unsupported: Callable[[Case], str | None] | None = None,
    untimed: Callable[[Case], str | None] | None = None,
    predicted_s: Callable[[Case], float | None] | None = None,
    environment: Callable[[], Mapping[str, str]] | None = None,
    compiles: bool = False,
) -> Kernel:
    """Implementation of multi-head attention around a plain function.

    The function is called as ``function(q, k, v, **keywords)`` with those of ``mask``, ``is_causal``,
    ``scale``, ``dropout_p`` and ``need_weights`` that its signature has; it returns the output, or output and
    weights. Cases that need an absent keyword are refused. ``mask`` is boolean with true = keep, or additive
    (always additive with ``additive_mask``); ``is_causal`` comes only where no extra columns are, and then
    without a mask.

    Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim), mask broadcastable to
    (batch, heads, queries, keys), output like q, weights (batch, heads, queries, keys).
    """
    return Kernel(
        function,
        name=name or function.__name__,
        source=source,
        policies=policies or Policies(),
        additive_mask=additive_mask,
        unsupported=unsupported,
        untimed=untimed,
        predicted_s=predicted_s,
        environment=environment,
        compiles=compiles,
    )
