"""The candidate: one implementation that is built, prepared and called on one case."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate.compilation import compile_call
from attnbench.cases import Case
from attnbench.devices import get_device
from attnbench.interface import Implementation, Inputs, Operator, Precision, Refusal
from attnbench.kernel.differentiable import can_have_gradient, find_differentiable, track_parameters
from attnbench.oracle.expected import WEIGHTS, blank_rows
from attnbench.records.value_facts import Phrase, phrase

__all__ = ["Candidate", "Malformed", "WithoutGradient", "call_mode"]


class Malformed(Exception):
    """Raised if an implementation's result does not have the required form; the argument says what is wrong.

    The argument is a phrase of ``attnbench.words``, or the text of a plug-in.
    """


class WithoutGradient(Malformed):
    """Raised if gradients are needed, but no output requires one."""


@contextmanager
def call_mode(case: Case) -> Iterator[None]:
    """Context with the gradient mode, inference mode and autocast of a case's call mode."""
    modes: list[AbstractContextManager[Any]] = [torch.set_grad_enabled(case.differentiates)]
    if case.call_mode.inference_mode:
        modes.append(torch.inference_mode())
    if case.autocast:
        modes.append(get_device(case.device).autocast(getattr(torch, case.dtype)))
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        yield


class Candidate:
    """One implementation, built and prepared for one case.

    The policy ``padded_queries="own"`` excludes the rows of padded queries from every comparison: outputs are set to 0
    in these rows, and no gradient flows through them.
    """

    def __init__(
        self, implementation: Implementation, operator: Operator, case: Case, inputs: Inputs, *, module: Any = None
    ) -> None:
        """Build a new module; or, if ``module`` is given, call this module, whatever it was called with before."""
        self.implementation = implementation
        self.operator = operator
        self.case = case
        self.inputs = inputs
        _track_inputs(case, inputs)
        self.module, self.call = self.build() if module is None else (module, self._prepare_module(module))

    @cached_property
    def reference(self) -> Any:
        """The reference module of the case, with its parameters."""
        return self.operator.reference(self.case, self.inputs)

    @property
    def precision(self) -> Precision:
        """Precision of the implementation's arithmetic on this case."""
        return self.implementation.policies.precision(self.case.dtype)

    def build(self, reference: Any = None) -> tuple[Any, Callable[..., Any]]:
        """Return a new module and the prepared function that calls the module.

        The module has the parameters of ``reference``, by default those of the reference module of the case.
        """
        # Parameters require gradients also where none are computed; what ``build`` makes of them then needs none.
        with torch.set_grad_enabled(self.case.differentiates):
            module = self.implementation.build(copy.deepcopy(self.reference if reference is None else reference))
        return module, self._prepare_module(module)

    def _prepare_module(self, module: Any) -> Callable[..., Any]:
        """Put a module into the mode of the case, and return the prepared function that calls it."""
        if isinstance(module, torch.nn.Module):
            module.train(self.case.training)
            track_parameters(module, requires_grad=self.case.leaves_parameters_trainable)
        return self.prepare(module, self.case, self.inputs)

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
        """Return the function that calls a module in a case, compiled if the case's mode says so."""
        with self.call_mode():
            call = self.implementation.prepare(module, case, inputs)
            return compile_call(call, module, case, inputs) if case.compiler else call

    def remake(self, *, case: Case | None = None, inputs: Inputs | None = None, module: Any = None) -> "Candidate":
        """Return a candidate of the same implementation with a new module, or with ``module``.

        ``case`` and ``inputs`` are those of this candidate, unless given.
        """
        return Candidate(self.implementation, self.operator, case or self.case, inputs or self.inputs, module=module)

    def move_to(self, case: Case, inputs: Inputs) -> "Candidate":
        """Return a candidate with the same module and the same prepared call, on a case in the same mode."""
        _track_inputs(case, inputs)
        other = copy.copy(self)
        other.case, other.inputs = case, inputs
        for name in ("outputs", "gradients"):
            other.__dict__.pop(name, None)
        return other

    def parameters(self) -> dict[str, Tensor]:
        """Return by name the module's parameters that can have gradients; {} if it is not a ``torch.nn.Module``."""
        return find_differentiable(self.module)

    def run(self, call: Callable[..., Any] | None = None, **changed: Any) -> dict[str, Tensor]:
        """Call the module on the current inputs and return its outputs; the keys are names of outputs.

        The rows of padded queries are set to 0 if the policy ``padded_queries`` excludes them.
        ``call`` replaces the prepared call. ``changed`` replaces some of the arguments of the call.

        Raises: Malformed if the result is not of the required form.
        """
        with self.call_mode():
            returned = (self.call if call is None else call)(**self.inputs.arguments() | changed)
        self.implementation.synchronize()
        return self.blank_excluded_rows(self.name_outputs(returned), self.case, self.inputs)

    def call_mode(self) -> AbstractContextManager[None]:
        """Context with the gradient mode, inference mode and autocast of the case's call mode."""
        return call_mode(self.case)

    def name_outputs(self, returned: Any) -> dict[str, Tensor]:
        """Return a dict of the outputs of a call, without None; the keys are names of outputs.

        ``returned``, the result of the call, must be a tuple or, if the operator has one output, a
        tensor.

        Raises: Malformed if the result has another form.
        """
        names = self.operator.outputs
        if len(names) == 1 and isinstance(returned, Tensor):
            returned = (returned,)
        if not isinstance(returned, tuple) or len(returned) != len(names):
            raise Malformed(_describe_form(names, returned))
        named = dict(zip(names, returned, strict=True))
        if not isinstance(named[names[0]], Tensor):
            raise Malformed(phrase("not_a_tensor", name=names[0], got=type(named[names[0]]).__name__))
        for name, value in named.items():
            if value is not None and not isinstance(value, Tensor):
                raise Malformed(phrase("not_a_tensor_or_none", name=name, got=type(value).__name__))
        # Convert to plain tensors: a subclass of Tensor may override any method that the checks
        # use.
        return {name: Tensor.as_subclass(value, Tensor) for name, value in named.items() if value is not None}

    def blank_excluded_rows(self, outputs: dict[str, Tensor], case: Case, inputs: Inputs) -> dict[str, Tensor]:
        """Return the outputs of a case, with 0 in rows that the policy ``padded_queries`` excludes."""
        if self.implementation.policies.padded_queries == "answered":
            return outputs
        return blank_rows(outputs, self.operator.padded_rows(case, inputs))

    @cached_property
    def outputs(self) -> dict[str, Tensor]:
        """Outputs of one call, which is made when this property is first used; the keys are names of outputs."""
        return self.run()

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """Gradients of the call that gave ``outputs``, computed when this property is first used.

        The dict is that of ``compute_gradients``.
        """
        return self.compute_gradients(self.outputs)

    @property
    def results(self) -> dict[str, Tensor]:
        """``outputs`` and, if the case differentiates, ``gradients``."""
        return self.outputs | (self.gradients if self.case.differentiates else {})

    def compute_loss(self, outputs: dict[str, Tensor]) -> Tensor:
        """Compute the loss Σ output · cotangent, without attention weights that carry no gradient.

        Raises: WithoutGradient if the loss does not require gradients.
        """
        loss = self.weigh(outputs, self.list_differentiable(outputs))
        if not loss.requires_grad:
            raise WithoutGradient
        return loss

    def list_differentiable(self, outputs: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the outputs in the loss: all, except attention weights that carry no gradient."""
        return [name for name, value in outputs.items() if not (name == WEIGHTS and self._are_constant(value))]

    def weigh(self, outputs: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
        """Return Σ output · cotangent over the named outputs."""
        start = next(iter(outputs.values())).new_zeros(())
        return sum(((outputs[name] * self.inputs.cotangents[name]).sum() for name in names if name in outputs), start)

    def _are_constant(self, weights: Tensor) -> bool:
        """Whether returned weights carry no gradient, or the policies declare them detached."""
        return self.implementation.policies.detached_weights or not weights.requires_grad

    def compute_gradients(self, outputs: dict[str, Tensor], *, retain_graph: bool = True) -> dict[str, Tensor]:
        """Return the gradients of the loss with respect to all inputs and parameters that require gradients.

        The keys are ``grad.<name>``, with the names of inputs and of the reference's parameters. The
        gradient of a tensor that the call does not use is 0.
        """
        inputs, parameters = self.collect_leaves(), self._collect_parameters()
        leaves = [*inputs.values(), *parameters.values()]
        found = torch.autograd.grad(self.compute_loss(outputs), leaves, allow_unused=True, retain_graph=retain_graph)
        return self.name_gradients(found)

    def name_gradients(self, found: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Name the gradients with respect to the inputs and the module's parameters, given in this order.

        None is the gradient of a tensor that the call does not use. The dict is that of ``compute_gradients``.
        """
        inputs, parameters = self.collect_leaves(), self._collect_parameters()
        leaves = [*inputs.values(), *parameters.values()]
        made = [torch.zeros_like(leaf) if own is None else own for leaf, own in zip(leaves, found, strict=True)]
        gradients = dict(zip(inputs, made[: len(inputs)], strict=True))
        if self.case.tracks_parameters:
            gradients |= self._map_to_reference(dict(zip(parameters, made[len(inputs) :], strict=True)))
        return {f"grad.{name}": gradient for name, gradient in gradients.items()}

    def _collect_parameters(self) -> dict[str, Tensor]:
        """Return the module's parameters by name; {} if the case tracks no gradients of parameters."""
        return self.parameters() if self.case.tracks_parameters else {}

    def collect_leaves(self) -> dict[str, Tensor]:
        """Return the input tensors that require gradients; the keys are names of inputs.

        A tensor that is passed as several inputs is returned once, with the name of the first of these
        inputs.
        """
        leaves: dict[str, Tensor] = {}
        for name, tensor in self.inputs.tensors.items():
            if tensor.requires_grad and not any(tensor is leaf for leaf in leaves.values()):
                leaves[name] = tensor
        return leaves

    def _map_to_reference(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Map gradients of the module's parameters to gradients of the reference's parameters.

        The mapping is the vector-Jacobian product of the implementation's method ``weights_of``.
        """
        given = {name: p.detach().requires_grad_(can_have_gradient(p)) for name, p in self.inputs.parameters.items()}
        parameters = {name: parameter for name, parameter in given.items() if parameter.requires_grad}
        made = self.implementation.weights_of(self.module, given)
        mapped = {name: tensor for name, tensor in made.items() if can_have_gradient(tensor)}
        unmatched = sorted(gradients.keys() ^ mapped.keys())
        if unmatched:
            raise Malformed(phrase("other_parameters", names=", ".join(unmatched)))
        if not parameters:
            return {}
        found = torch.autograd.grad(
            [mapped[name] for name in gradients], list(parameters.values()), list(gradients.values()),
            allow_unused=True, materialize_grads=True,
        )  # fmt: skip
        return dict(zip(parameters, found, strict=True))

    def call_with_options(self, **changes: Any) -> dict[str, Tensor]:
        """Call the module on the same inputs with other options, such as ``need_weights``; return the outputs.

        Raises: Refusal if the implementation does not support the resulting case.
        """
        case = self.case.with_problem(**changes)
        inputs = replace(self.inputs, options=self.inputs.options | changes)
        return self.run_on(case, inputs)

    def run_on(self, case: Case, inputs: Inputs, module: Any = None) -> dict[str, Tensor]:
        """Call the candidate's module, or ``module``, on another case with the same parameters; return the outputs.

        Raises: Refusal if the implementation does not support that case.
        """
        if reason := self.implementation.unsupported(case):
            raise Refusal(reason)
        call = self.prepare(self.module if module is None else module, case, inputs)
        with self.call_mode():
            returned = call(**inputs.arguments())
        self.implementation.synchronize()
        return self.blank_excluded_rows(self.name_outputs(returned), case, inputs)

    def make_step(self) -> Callable[[], Any]:
        """Return a function that makes one timed pass.

        The pass is a forward pass. In a case with gradients, a backward pass follows, to all inputs
        and parameters that require gradients; the function then returns the first output and these gradients.
        """
        arguments, call = self.inputs.arguments(), self.call
        if not self.case.differentiates:

            def forward() -> Any:
                with torch.no_grad():
                    return call(**arguments)

            return forward
        leaves = [*self.collect_leaves().values(), *self._collect_parameters().values()]
        cotangent = self.inputs.cotangents[self.operator.outputs[0]]

        def forward_and_backward() -> Any:
            returned = call(**arguments)
            output = returned[0] if isinstance(returned, tuple) else returned
            return (output.detach(), *torch.autograd.grad(output, leaves, cotangent, allow_unused=True))

        return forward_and_backward

    def overwrite(self, changes: dict[str, Tensor]) -> "_Overwritten":
        """Return a context in which the input tensors named in ``changes`` have new values.

        The values are written in place. At the end of the context, the old values are restored.
        """
        return _Overwritten(self, changes)

    def write(self, values: Mapping[str, Tensor]) -> None:
        """Write values into the input tensors, in place; the keys are names of inputs."""
        with torch.no_grad():
            for name, value in values.items():
                self.inputs.tensors[name].copy_(value)


def _track_inputs(case: Case, inputs: Inputs) -> None:
    """Let the input tensors require gradients as the case's mode says.

    The cotangents require none: otherwise even the loss of a detached output would require gradients, and
    ``compute_loss`` could not detect the missing gradients.
    """
    for name, tensor in inputs.tensors.items():
        constant = name in case.problem.constant_masks
        tensor.requires_grad_(case.tracks_inputs and can_have_gradient(tensor) and not constant)


def _describe_form(names: Sequence[str], returned: object) -> Phrase:
    """Return which form the result of a call has, and which it must have."""
    if len(names) > 1 and isinstance(returned, tuple):
        return phrase("not_a_tuple_of_length", names=", ".join(names), count=len(returned))
    if len(names) > 1:
        return phrase("not_a_tuple", names=", ".join(names), got=type(returned).__name__)
    if isinstance(returned, tuple):
        return phrase("tuple_result", name=names[0], count=len(returned))
    return phrase("not_a_tensor_result", name=names[0], got=type(returned).__name__)


class _Overwritten:
    def __init__(self, candidate: Candidate, changes: dict[str, Tensor]) -> None:
        self._candidate = candidate
        self._changes = changes
        self._before = {name: candidate.inputs.tensors[name].detach().clone() for name in changes}

    def __enter__(self) -> None:
        self._candidate.write(self._changes)

    def __exit__(self, *_: object) -> None:
        self._candidate.write(self._before)
