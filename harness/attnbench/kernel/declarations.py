"""The base of ``Kernel`` and ``CoreKernel``: a plain function on split heads, and what its author declares about it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies, Refusal
from attnbench.interface.conventions import Convention
from attnbench.kernel.convention import call_by, find_keywords
from attnbench.refusals import LacksGradients, LacksKeywords, Restriction, TakesOnly, TypedRefusal

__all__ = ["DeclaredKernel", "KernelFunction"]

# A function (q, k, v, *, mask, is_causal, scale, dropout_p, need_weights) -> output, or (output, weights). It may lack
# keywords.
KernelFunction = Callable[..., Any]


class DeclaredKernel(Implementation):
    """An implementation made from a function on tensors that are split into heads."""

    def __init__(
        self,
        function: KernelFunction,
        *,
        name: str,
        source: str,
        policies: Policies,
        convention: Convention,
        unsupported: Callable[[Case], TypedRefusal | str | None] | None,
        untimed: Callable[[Case], TypedRefusal | str | None] | None,
        predicted_s: Callable[[Case], float | None] | None,
        environment: Callable[[], Mapping[str, str]] | None,
        compiles: bool,
    ) -> None:
        self.function = function
        self.name = name
        self.source = source
        self.policies = policies
        self.convention = convention
        # The call of the default convention is made directly: it is timed.
        self._is_adapted = convention not in (Convention(), Convention(masks="additive"))
        self._unsupported = unsupported
        self._untimed = untimed
        self._predicted_s = predicted_s
        self._environment = environment
        self.compiles = compiles
        self._accepted = find_keywords(convention, function)

    @property
    def additive_mask(self) -> bool:
        """Whether the function's masks are always added to the logits."""
        return self.convention.masks == "additive"

    def needs(self, case: Case) -> Mapping[str, bool]:
        """Return, for each keyword that only some cases need, whether this case needs the keyword."""
        raise NotImplementedError

    def fits_convention(self, case: Case) -> Mapping[Restriction, bool]:
        """Return, for each restriction of a convention, whether the call of this case satisfies it."""
        raise NotImplementedError

    def find_restriction(self, fits: Mapping[Restriction, bool]) -> TakesOnly | None:
        """Return the first restriction of the convention that a call does not satisfy; None if there is none."""
        holds: Mapping[Restriction, bool] = {
            "causal": self.convention.causal_only,
            "boolean_masks": self.convention.masks in ("keep", "hide"),
            "equal_shapes": self.convention.is_packed,
        }
        broken = next((what for what, restricts in holds.items() if restricts and not fits[what]), None)
        return None if broken is None else TakesOnly(what=broken)

    def takes(self, keyword: str) -> bool:
        """Whether the function's signature has this keyword."""
        return self._accepted is None or keyword in self._accepted

    def find_missing_keyword(self, needs: Mapping[str, bool]) -> LacksKeywords | None:
        """Return the first needed keyword that the signature lacks; None if it lacks no needed keyword."""
        missing = next((word for word, needed in needs.items() if needed and not self.takes(word)), None)
        return None if missing is None else LacksKeywords(keywords=(missing,))

    def call_function(
        self, q: Tensor, k: Tensor, v: Tensor, *, needs: Mapping[str, bool], offered: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Call the function with the ``offered`` keywords that it accepts.

        Return the output and the attention weights. The weights are None if the function returns only the output.

        Raises: Refusal where the function does not accept a needed keyword, or where a tensor needs gradients that the
        function does not support.
        """
        reason: TypedRefusal | None = self.find_missing_keyword(needs)
        if self._is_adapted and reason is None:
            reason = self.find_restriction(_describe_call(q, k, v, offered))
        tensors = [tensor for tensor in (q, k, v, offered.get("mask")) if tensor is not None]
        if self.policies.forward_only and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            reason = LacksGradients()
        if reason:
            raise Refusal(reason)
        keywords = {word: value for word, value in offered.items() if self.takes(word)}
        if self._is_adapted:
            result = call_by(self.convention, self.function, q, k, v, keywords)
        else:
            result = self.function(q, k, v, **keywords)
        return result if isinstance(result, tuple) else (result, None)

    def unsupported(self, case: Case) -> TypedRefusal | str | None:
        """Return why a case is refused (missing keyword, no gradients, or the author's reason); None if supported."""
        if reason := self.find_missing_keyword(self.needs(case)):
            return reason
        if self._is_adapted and (restriction := self.find_restriction(self.fits_convention(case))):
            return restriction
        if self.policies.forward_only and case.differentiates:
            return LacksGradients()
        return self._unsupported(case) if self._unsupported else None

    def untimed(self, case: Case) -> TypedRefusal | str | None:
        """Return why the function's author excludes a case from timing, or None if the case may be timed."""
        return self._untimed(case) if self._untimed else None

    def predicted_s(self, case: Case) -> float | None:
        """Return the seconds that the function's author predicts for one call, or None without a prediction."""
        return self._predicted_s(case) if self._predicted_s else None

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that the function's author declares."""
        return self._environment() if self._environment else {}


def _describe_call(q: Tensor, k: Tensor, v: Tensor, offered: Mapping[str, Any]) -> Mapping[Restriction, bool]:
    """Return, for each restriction of a convention, whether a call satisfies it."""
    mask = offered.get("mask")
    return {
        "causal": bool(offered.get("is_causal")),
        "boolean_masks": mask is None or mask.dtype == torch.bool,
        "equal_shapes": q.shape == k.shape == v.shape,
    }
