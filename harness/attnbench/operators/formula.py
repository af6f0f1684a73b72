"""The base class of operators that are defined by a formula: the shortest way to check a new kind of attention."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnbench.cases import Case
from attnbench.interface import Inputs, Operator

if TYPE_CHECKING:
    import torch

    from attnbench.oracle.inputs import Draw

__all__ = ["FormulaOperator", "Rounded"]

# Type of the function ``rounded(tensor, terms=0)``. In the rounding model it returns ``tensor`` with noise, otherwise
# ``tensor`` itself. Each element of ``tensor`` is a sum of ``terms`` products.
Rounded = Callable[..., "torch.Tensor"]


class FormulaOperator(Operator):
    """An operator that a subclass defines by the methods ``numbers`` and ``formula``.

    Oracle, rounding model, yardsticks and reference are derived from these two methods.

    The oracle is the formula in float64. The rounding model is the formula with noise on every result that ``formula``
    passes to ``rounded``. The yardsticks are the formula and each of ``paths`` in the case's dtype. The reference is a
    module that holds the parameters and computes the formula.
    """

    def numbers(self, problem: Any, draw: "Draw") -> Inputs:
        """Draw the parameters, tensors and options of a problem in float64; the caller draws the cotangents."""
        raise NotImplementedError(f"{type(self).__name__} does not define numbers(problem, draw)")

    def formula(self, problem: Any, given: Mapping[str, Any], rounded: Rounded) -> Any:
        """Compute the output, or a tuple of all outputs in the order of the attribute ``outputs``.

        ``given`` maps names to parameters and arguments. Call ``rounded(tensor, terms=0)`` on every intermediate
        result that an implementation stores; ``terms`` is the number of products that each element sums.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define formula(problem, given, rounded)")

    def paths(self) -> Sequence[Callable[..., Any]]:
        """Return functions that compute the outputs of ``formula`` by other steps: additional yardsticks."""
        return ()

    def inputs(self, case: Case) -> Inputs:
        """Draw the inputs by ``numbers``, and a random cotangent for each output, all rounded to the case's dtype."""
        from dataclasses import replace

        import torch

        from attnbench.oracle.inputs import Draw, round_inputs

        draw = Draw(case.seed)
        drawn = self.numbers(case.problem, draw)
        shapes = {name: value.shape for name, value in self._compute_outputs(case, drawn, _leave_unrounded).items()}
        cotangents = {name: draw.normal(f"cotangent.{name}", *shape) for name, shape in shapes.items()}
        return round_inputs(replace(drawn, cotangents=cotangents), getattr(torch, case.given_dtype))

    def evaluate(
        self, case: Case, inputs: Inputs, *, noise: Any = None, keep: Any = None, fault: Any = None
    ) -> dict[str, Any]:
        """Return outputs and gradients, keyed by name.

        ``fault`` is a function that is called in place of ``formula``; None means that ``formula`` is called.
        """
        from attnbench.operators.quantities import compute_quantities

        if keep is not None:
            raise ValueError(f"keep must be None: {self.name} has no dropout, got a dropout mask")

        def noisy(tensor: "torch.Tensor", terms: int = 0) -> "torch.Tensor":
            found: torch.Tensor = noise(noise.perturb_sum(tensor, terms))
            return found

        step = noisy if noise else _leave_unrounded
        return compute_quantities(
            case, inputs, lambda given: self._compute_outputs(case, given, step, fault), noise=noise
        )

    def yardsticks(self, case: Case, inputs: Inputs) -> Iterator[dict[str, Any]]:
        """Yield the quantities of the formula and of each of ``paths`` in the case's dtype."""
        from attnbench.operators.quantities import compute_quantities

        for formula in (self.formula, *self.paths()):
            yield compute_quantities(
                case, inputs, partial(self._compute_outputs, case, rounded=_leave_unrounded, formula=formula)
            )

    def noise(self, roundoff: float, seed: int) -> Any:
        """Return the noise of the rounding model.

        Each stored result gets a random relative error of at most ``roundoff``. Each sum also gets the error of its
        accumulation.
        """
        from attnbench.operators.rounding import Noise

        return Noise(roundoff, seed)

    def reference(self, case: Case, inputs: Inputs) -> Any:
        """Return a module that holds the parameters and computes the formula."""
        from attnbench.kernel import CalledModule
        from attnbench.kernel.differentiable import track_parameters

        def call(**given: Any) -> Any:
            return self.formula(case.problem, given, _leave_unrounded)

        module = CalledModule(call, inputs.parameters)
        track_parameters(module, requires_grad=case.leaves_parameters_trainable)
        return module.train(case.training)

    def _compute_outputs(
        self, case: Case, inputs: Inputs, rounded: Rounded, formula: Callable[..., Any] | None = None
    ) -> dict[str, "torch.Tensor"]:
        returned = (formula or self.formula)(case.problem, {**inputs.parameters, **inputs.arguments()}, rounded)
        found = returned if isinstance(returned, tuple) else (returned,)
        return dict(zip(self.outputs, found, strict=True))


def _leave_unrounded(tensor: "torch.Tensor", terms: int = 0) -> "torch.Tensor":  # noqa: ARG001
    return tensor
