"""A plain function of split heads, and what its author declares of it: what both scopes of a kernel share."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies, Refusal, accepted

__all__ = ["DeclaredKernel", "KernelFunction"]

# fn(q, k, v, *, mask, is_causal, scale, dropout_p, need_weights) -> output, or (output, weights)
KernelFunction = Callable[..., Any]
FORWARD_ONLY = "forward only: no gradients"
# What is told of a keyword that a signature lacks, where its name alone does not say it.
LACKING = {"enable_gqa": "enable_gqa: heads of keys must be as many as heads of queries"}


class DeclaredKernel(Implementation):
    """An implementation made from a function on head-split tensors."""

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

    def needs(self, case: Case) -> Mapping[str, bool]:
        """Keywords that a case needs."""
        raise NotImplementedError

    def takes(self, keyword: str) -> bool:
        """Whether the function's signature has this keyword."""
        return self._accepted is None or keyword in self._accepted

    def lacks(self, needs: Mapping[str, bool]) -> str | None:
        """Which keyword is needed and not in the function's signature, as a reason, or None."""
        missing = next((word for word, needed in needs.items() if needed and not self.takes(word)), None)
        return None if missing is None else f"the kernel takes no {LACKING.get(missing, missing)}"

    def returned(
        self, q: Tensor, k: Tensor, v: Tensor, *, needs: Mapping[str, bool], offered: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Output, and weights or None, of the function, handed what it takes of the keywords that are offered.

        Raises: Refusal where it lacks one that is needed, or gradients.
        """
        reason = self.lacks(needs)
        given = [tensor for tensor in (q, k, v, offered.get("mask")) if tensor is not None]
        if self.policies.forward_only and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            reason = FORWARD_ONLY
        if reason:
            raise Refusal(reason)
        found = self.function(q, k, v, **{word: given for word, given in offered.items() if self.takes(word)})
        return found if isinstance(found, tuple) else (found, None)

    def unsupported(self, case: Case) -> str | None:
        """Refuse what needs a keyword that the function does not have, then what its author refuses."""
        if reason := self.lacks(self.needs(case)):
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
