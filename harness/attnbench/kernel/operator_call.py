"""Implementations made from a plain function that takes an operator's parameters and arguments."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Call, Implementation, Inputs, Policies, Refusal, find_accepted_keywords
from attnbench.kernel.differentiable import can_have_gradient
from attnbench.refusals import LacksKeywords, TypedRefusal

__all__ = ["CalledModule", "from_call"]


class CalledModule(nn.Module):
    """A module whose forward passes its parameters and the call's arguments to a function as keyword arguments."""

    def __init__(self, function: Callable[..., Any], parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._function = function
        for name, value in parameters.items():
            tracked = can_have_gradient(value)
            self.register_parameter(name, nn.Parameter(value.detach().clone(), requires_grad=tracked))

    def forward(self, **arguments: Any) -> Any:
        """Return the function's result."""
        return self._function(**dict(self.named_parameters()), **arguments)


class _FunctionImplementation(Implementation):
    """An implementation of an operator that calls a plain function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        operator: str,
        name: str,
        source: str,
        policies: Policies,
        unsupported: Callable[[Case], TypedRefusal | str | None] | None,
        predicted_s: Callable[[Case], float | None] | None,
    ) -> None:
        self.function = function
        self.operator = operator
        self.name = name
        self.source = source
        self.policies = policies
        self._unsupported = unsupported
        self._predicted_s = predicted_s

    def unsupported(self, case: Case) -> TypedRefusal | str | None:
        """Return why the function's author refuses a case, or None if the case is supported."""
        return self._unsupported(case) if self._unsupported else None

    def predicted_s(self, case: Case) -> float | None:
        """Return the seconds that the function's author predicts for one call, or None without a prediction."""
        return self._predicted_s(case) if self._predicted_s else None

    def build(self, reference: nn.Module) -> nn.Module:
        """Return a module that calls the function with the reference's parameters."""
        return CalledModule(self.function, dict(reference.named_parameters()))

    def prepare(self, module: nn.Module, case: Case, inputs: Inputs) -> Call:
        """Return a call of the module, if the function accepts every argument of the call.

        Raises: Refusal where the function does not accept an argument of the call.
        """
        accepted = find_accepted_keywords(self.function)
        if accepted is not None and (missing := sorted({*inputs.arguments()} - accepted)):
            raise Refusal(LacksKeywords(keywords=tuple(missing), of="function"))
        return super().prepare(module, case, inputs)


def from_call(
    function: Callable[..., Any],
    *,
    operator: str,
    name: str = "",
    source: str = "",
    policies: Policies | None = None,
    unsupported: Callable[[Case], TypedRefusal | str | None] | None = None,
    predicted_s: Callable[[Case], float | None] | None = None,
) -> Implementation:
    """Make an implementation of an operator from a function.

    The function takes the operator's parameters and arguments as keywords. It returns what the operator's call returns:
    the output, or a tuple of outputs.
    """
    return _FunctionImplementation(
        function,
        operator=operator,
        name=name or function.__name__,
        source=source,
        policies=policies or Policies(),
        unsupported=unsupported,
        predicted_s=predicted_s,
    )
