"""One implementation on one case: built, prepared, called, its inputs changed, its gradients taken."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate.compilation import compiled
from attnbench.cases import Case
from attnbench.interface import Implementation, Inputs, Operator, Refusal
from attnbench.oracle.expected import blank_rows

__all__ = ["Candidate", "Malformed"]


class Malformed(Exception):
    """The implementation returned something that is no result at all; the message says what."""


class Candidate:
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
        return self.case.tracks_inputs and tensor.is_floating_point()

    def build(self, reference: Any = None) -> tuple[Any, Callable[..., Any]]:
        """A fresh module with the weights of the reference (the case's own unless given), and its prepared call."""
        module = self.implementation.build(copy.deepcopy(self.reference if reference is None else reference))
        if isinstance(module, torch.nn.Module):
            module.train(self.case.training).requires_grad_(self.case.tracks_parameters)
        return module, self.prepare(module, self.case, self.inputs)

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
        """The call of a module on inputs of a case, compiled where the mode says so."""
        with self.call_mode():
            call = self.implementation.prepare(module, case, inputs)
            return compiled(call, module, case, inputs) if case.compiler else call

    def parameters(self) -> dict[str, Tensor]:
        """The module's own parameters by name; none where it is not torch's."""
        return dict(self.module.named_parameters()) if isinstance(self.module, torch.nn.Module) else {}

    def run(self, call: Callable[..., Any] | None = None, **changed: Any) -> dict[str, Tensor]:
        """Outputs by name of one call on the inputs as they are now; ``changed`` replaces arguments.

        Rows that are the implementation's own are 0, and nothing comes back through them.

        Raises: Malformed where the call returned no such thing.
        """
        with self.call_mode():
            returned = (self.call if call is None else call)(**self.inputs.arguments() | changed)
        self.implementation.synchronize()
        return self.compared(self.named(returned), self.case, self.inputs)

    @contextmanager
    def call_mode(self) -> Iterator[None]:
        """Gradient mode and autocast as the case's mode has them."""
        case = self.case
        modes: list[AbstractContextManager[Any]] = [torch.set_grad_enabled(case.differentiates)]
        if case.call_mode.inference_mode:
            modes.append(torch.inference_mode())
        if case.autocast:
            modes.append(torch.autocast(case.device, dtype=getattr(torch, case.dtype)))
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            yield

    def named(self, returned: Any) -> dict[str, Tensor]:
        """Outputs by name from what a call returned: a tuple, or a tensor where there is one output alone.

        Raises: Malformed.
        """
        names = self.operator.outputs
        if len(names) == 1 and isinstance(returned, Tensor):
            returned = (returned,)
        if not isinstance(returned, tuple) or len(returned) != len(names):
            came = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
            wanted = f"a tuple ({', '.join(names)})" if len(names) > 1 else f"a Tensor, the {names[0]}"
            raise Malformed(f"the call must return {wanted}, got {came}")
        named = dict(zip(names, returned, strict=True))
        if not isinstance(named[names[0]], Tensor):
            raise Malformed(f"{names[0]} must be a Tensor, got {type(named[names[0]]).__name__}")
        for name, value in named.items():
            if value is not None and not isinstance(value, Tensor):
                raise Malformed(f"{name} must be a Tensor or None, got {type(value).__name__}")
        # A subclass of Tensor may say anything of itself; what it holds may not.
        return {name: Tensor.as_subclass(value, Tensor) for name, value in named.items() if value is not None}

    def compared(self, outputs: dict[str, Tensor], case: Case, inputs: Inputs) -> dict[str, Tensor]:
        """Outputs of a case without the rows that are the implementation's own."""
        if self.implementation.policies.padded_queries == "answered":
            return outputs
        return blank_rows(outputs, self.operator.padded_rows(case, inputs))

    @cached_property
    def outputs(self) -> dict[str, Tensor]:
        """Outputs of the first call."""
        return self.run()

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """Gradients of the first call, ``grad.<name>``: of inputs, and of parameters in the reference's layout."""
        return self.gradients_of(self.outputs)

    def loss(self, outputs: dict[str, Tensor]) -> Tensor:
        """Σ output · cotangent.

        Raises: Malformed where it has no gradient.
        """
        loss = sum(
            ((value * self.inputs.cotangents[name]).sum() for name, value in outputs.items()),
            next(iter(outputs.values())).new_zeros(()),
        )
        if not loss.requires_grad:
            raise Malformed("no gradient reaches the inputs: the outputs do not require grad")
        return loss

    def gradients_of(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gradients of the loss by everything that the case tracks; zero where nothing reaches."""
        inputs = self.leaves()
        own = self.parameters() if self.case.tracks_parameters else {}
        leaves = [*inputs.values(), *own.values()]
        found = torch.autograd.grad(
            self.loss(outputs), leaves, allow_unused=True, retain_graph=True, materialize_grads=True
        )
        gradients = dict(zip(inputs, found[: len(inputs)], strict=True))
        if self.case.tracks_parameters:
            gradients |= self._in_reference_layout(dict(zip(own, found[len(inputs) :], strict=True)))
        return {f"grad.{name}": gradient for name, gradient in gradients.items()}

    def leaves(self) -> dict[str, Tensor]:
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
        if not parameters:
            return {}
        found = torch.autograd.grad(
            [mapped[name] for name in own], list(parameters.values()), list(own.values()),
            allow_unused=True, materialize_grads=True,
        )  # fmt: skip
        return dict(zip(parameters, found, strict=True))

    def like(self, **changes: Any) -> dict[str, Tensor]:
        """Outputs of this module for the same inputs with other options, such as ``need_weights``.

        Raises: Refusal where the implementation does not take the case that this makes.
        """
        case = self.case.with_problem(**changes)
        inputs = replace(self.inputs, options=self.inputs.options | changes)
        return self.on(case, inputs)

    def on(self, case: Case, inputs: Inputs, module: Any = None) -> dict[str, Tensor]:
        """Outputs of this module, or of another one, for another case of the same parameters.

        Raises: Refusal where the implementation does not take that case.
        """
        if reason := self.implementation.unsupported(case):
            raise Refusal(reason)
        call = self.prepare(self.module if module is None else module, case, inputs)
        with self.call_mode():
            returned = call(**inputs.arguments())
        self.implementation.synchronize()
        return self.compared(self.named(returned), case, inputs)

    def step(self) -> Callable[[], Any]:
        """One pass as it is timed: forward, and backward to every input and parameter unless in inference."""
        arguments, call = self.inputs.arguments(), self.call
        if not self.case.differentiates:

            def forward() -> Any:
                with torch.no_grad():
                    return call(**arguments)

            return forward
        leaves = [*self.leaves().values(), *(p for p in self.parameters().values() if p.requires_grad)]
        cotangent = self.inputs.cotangents[self.operator.outputs[0]]

        def forward_and_backward() -> Any:
            returned = call(**arguments)
            output = returned[0] if isinstance(returned, tuple) else returned
            return torch.autograd.grad(output, leaves, cotangent, allow_unused=True)

        return forward_and_backward

    def overwritten(self, changes: dict[str, Tensor]) -> "_Overwritten":
        """Context in which tensor inputs hold other values, written in place."""
        return _Overwritten(self, changes)

    def write(self, values: Mapping[str, Tensor]) -> None:
        """Write values into tensor inputs, in place."""
        with torch.no_grad():
            for name, value in values.items():
                self.inputs.tensors[name].copy_(value)


class _Overwritten:
    def __init__(self, candidate: Candidate, changes: dict[str, Tensor]) -> None:
        self._subject = candidate
        self._changes = changes
        self._before = {name: candidate.inputs.tensors[name].detach().clone() for name in changes}

    def __enter__(self) -> None:
        self._subject.write(self._changes)

    def __exit__(self, *_: object) -> None:
        self._subject.write(self._before)
