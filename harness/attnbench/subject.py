"""One implementation on one case: built, prepared, called, its inputs changed, its gradients taken."""

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Implementation, Inputs, Operator

__all__ = ["Malformed", "Subject"]


class Malformed(Exception):
    """The implementation returned something that is no result at all; the message says what."""


class Subject:
    """One implementation, built and prepared for one case."""

    def __init__(self, implementation: Implementation, operator: Operator, case: Case, inputs: Inputs) -> None:
        self.implementation = implementation
        self.operator = operator
        self.case = case
        self.inputs = inputs
        # Not the cotangents: through them every loss would have a gradient, that of a detached output too.
        for tensor in inputs.tensors.values():
            tensor.requires_grad_(self._tracks(tensor))
        self.reference = operator.reference(case, inputs)
        self.module, self.call = self.build()

    def _tracks(self, tensor: Tensor) -> bool:
        return self.case.mode != "inference" and tensor.is_floating_point()

    def build(self) -> tuple[Any, Callable[..., Any]]:
        """A fresh module with the reference's weights, in the case's mode, and its prepared call."""
        module = self.implementation.build(copy.deepcopy(self.reference))
        if isinstance(module, torch.nn.Module):
            module.train(self.case.mode == "train")
        with self._gradient_mode():
            return module, self.implementation.prepare(module, self.case, self.inputs)

    def parameters(self) -> dict[str, Tensor]:
        """The module's own parameters by name; none where it is not torch's."""
        return dict(self.module.named_parameters()) if isinstance(self.module, torch.nn.Module) else {}

    def run(self, call: Callable[..., Any] | None = None) -> dict[str, Tensor]:
        """Outputs by name of one call on the inputs as they are now.

        Raises: Malformed where the call returned no such thing.
        """
        with self._gradient_mode():
            returned = (call or self.call)(**self.inputs.arguments())
        self.implementation.synchronize()
        return self._named(returned)

    def _gradient_mode(self) -> torch.set_grad_enabled:
        return torch.set_grad_enabled(self.case.mode != "inference")

    def _named(self, returned: Any) -> dict[str, Tensor]:
        names = self.operator.outputs
        if not isinstance(returned, tuple) or len(returned) != len(names):
            came = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
            raise Malformed(f"the call must return a tuple ({', '.join(names)}), got {came}")
        named = dict(zip(names, returned, strict=True))
        if not isinstance(named[names[0]], Tensor):
            raise Malformed(f"{names[0]} must be a Tensor, got {type(named[names[0]]).__name__}")
        for name, value in named.items():
            if value is not None and not isinstance(value, Tensor):
                raise Malformed(f"{name} must be a Tensor or None, got {type(value).__name__}")
        return {name: value for name, value in named.items() if value is not None}

    @cached_property
    def outputs(self) -> dict[str, Tensor]:
        """Outputs of the first call."""
        return self.run()

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """Gradients of the first call, ``grad.<name>``: of inputs, and of parameters in the reference's layout."""
        return self.gradients_of(self.outputs)

    def gradients_of(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gradients of the loss Σ output · cotangent; zero where nothing reaches."""
        inputs = self._leaves()
        own = self.parameters()
        loss = sum(
            ((value * self.inputs.cotangents[name]).sum() for name, value in outputs.items()),
            next(iter(outputs.values())).new_zeros(()),
        )
        if not loss.requires_grad:
            raise Malformed("no gradient reaches the inputs: the outputs do not require grad")
        leaves = [*inputs.values(), *own.values()]
        found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True, materialize_grads=True)
        gradients = dict(zip(inputs, found[: len(inputs)], strict=True))
        gradients |= self._in_reference_layout(dict(zip(own, found[len(inputs) :], strict=True)))
        return {f"grad.{name}": gradient for name, gradient in gradients.items()}

    def _leaves(self) -> dict[str, Tensor]:
        """Tensor inputs that take gradients, each once under its first name."""
        leaves: dict[str, Tensor] = {}
        for name, tensor in self.inputs.tensors.items():
            if tensor.requires_grad and not any(tensor is known for known in leaves.values()):
                leaves[name] = tensor
        return leaves

    def _in_reference_layout(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gradients by the reference's parameters: the vector-Jacobian product of ``weights``."""
        parameters = {name: p.detach().requires_grad_() for name, p in self.inputs.parameters.items()}
        mapped = self.implementation.weights(parameters)
        strangers = sorted(own.keys() ^ mapped.keys())
        if strangers:
            raise Malformed(
                f"the module's parameters and those that weights() names differ in {', '.join(strangers)}; "
                "define weights(parameters) for a layout of its own"
            )
        found = torch.autograd.grad(
            [mapped[name] for name in own], list(parameters.values()), list(own.values()),
            allow_unused=True, materialize_grads=True,
        )  # fmt: skip
        return dict(zip(parameters, found, strict=True))

    def step(self) -> Callable[[], Any]:
        """One pass as it is timed: forward, and backward to every input and parameter unless in inference."""
        arguments, call = self.inputs.arguments(), self.call
        if self.case.mode == "inference":

            def forward() -> Any:
                with torch.no_grad():
                    return call(**arguments)

            return forward
        leaves = [*self._leaves().values(), *self.parameters().values()]
        cotangent = self.inputs.cotangents[self.operator.outputs[0]]

        def forward_and_backward() -> Any:
            output = call(**arguments)[0]
            return torch.autograd.grad(output, leaves, cotangent, allow_unused=True)

        return forward_and_backward

    def overwritten(self, changes: dict[str, Tensor]) -> "_Overwritten":
        """Context in which tensor inputs hold other values, written in place."""
        return _Overwritten(self.inputs, changes)


class _Overwritten:
    def __init__(self, inputs: Inputs, changes: dict[str, Tensor]) -> None:
        self._inputs = inputs
        self._changes = changes
        self._before = {name: inputs.tensors[name].detach().clone() for name in changes}

    def _write(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                self._inputs.tensors[name].copy_(value)

    def __enter__(self) -> None:
        self._write(self._changes)

    def __exit__(self, *_: object) -> None:
        self._write(self._before)
