"""A plain function of everything that an operator's call is given, as an implementation of that operator."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Call, Implementation, Inputs, Policies, Refusal, accepted

__all__ = ["CalledModule", "from_call"]


class CalledModule(nn.Module):
    """Parameters, and a function that is called with them and with the call's arguments, all by name."""

    def __init__(self, function: Callable[..., Any], parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._function = function
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value.detach().clone()))

    def forward(self, **arguments: Any) -> Any:
        """What the function returns."""
        return self._function(**dict(self.named_parameters()), **arguments)


class _Called(Implementation):
    """An implementation that is a function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        operator: str,
        name: str,
        source: str,
        policies: Policies,
        unsupported: Callable[[Case], str | None] | None,
        predicted_s: Callable[[Case], float | None] | None,
    ) -> None:
        self.function = function
        self.operator = operator
        self.name = name
        self.source = source
        self.policies = policies
        self._unsupported = unsupported
        self._predicted_s = predicted_s

    def unsupported(self, case: Case) -> str | None:
        """What its author says."""
        return self._unsupported(case) if self._unsupported else None

    def predicted_s(self, case: Case) -> float | None:
        """What its author predicts."""
        return self._predicted_s(case) if self._predicted_s else None

    def build(self, reference: nn.Module) -> nn.Module:
        """The function with the reference's parameters."""
        return CalledModule(self.function, dict(reference.named_parameters()))

    def prepare(self, module: nn.Module, case: Case, inputs: Inputs) -> Call:
        """The module; a function whose signature lacks a mask or an option is not called with it.

        Raises: Refusal.
        """
        known = accepted(self.function)
        if known is not None and (lacking := sorted({*inputs.arguments()} - known)):
            raise Refusal(f"the function takes no {', '.join(lacking)}")
        return super().prepare(module, case, inputs)


def from_call(
    function: Callable[..., Any],
    *,
    operator: str,
    name: str = "",
    source: str = "",
    policies: Policies | None = None,
    unsupported: Callable[[Case], str | None] | None = None,
    predicted_s: Callable[[Case], float | None] | None = None,
) -> Implementation:
    """Implementation of an operator that is a plain function of its parameters and arguments, by their names.

    It returns what the operator's call returns: the output, or a tuple of outputs.
    """
    return _Called(
        function,
        operator=operator,
        name=name or function.__name__,
        source=source,
        policies=policies or Policies(),
        unsupported=unsupported,
        predicted_s=predicted_s,
    )
