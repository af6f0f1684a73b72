"""An operator that is little more than its formula: what somebody writes to have attention of their own checked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnbench.cases import Case
from attnbench.interface import Inputs, Operator

if TYPE_CHECKING:
    import torch

    from attnbench.oracle.inputs import Draw

__all__ = ["FormulaOperator", "Rounded"]

# A step's result as it is stored, of which each element is a sum of so many products.
Rounded = Callable[..., "torch.Tensor"]


class FormulaOperator(Operator):
    """An operator that is told by its numbers and its formula; everything else follows from these two.

    The oracle is the formula in float64, the rounding model the same with noise wherever it calls ``rounded``, the
    yardstick the same in the case's own dtype, beside that of ``paths``, and the reference a module that holds the
    parameters.
    """

    def numbers(self, problem: Any, draw: "Draw") -> Inputs:
        """Parameters, tensors and options of a problem, drawn in float64; cotangents are drawn for it."""
        raise NotImplementedError(f"{type(self).__name__} does not define numbers(problem, draw)")

    def formula(self, problem: Any, given: Mapping[str, Any], rounded: Rounded) -> Any:
        """Output, or a tuple of outputs in the order of ``outputs``, from parameters and arguments by name.

        ``rounded(tensor, terms=0)`` is to be called on what is stored after each step; ``terms`` is the number of
        products that each element is a sum of.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define formula(problem, given, rounded)")

    def paths(self) -> Sequence[Callable[..., Any]]:
        """Functions like ``formula`` that give the same by other steps, on which rounding may cost more; none here."""
        return ()

    def inputs(self, case: Case) -> Inputs:
        """The problem's numbers, and cotangents of the shapes that the formula gives, rounded to the case's dtype."""
        from dataclasses import replace

        import torch

        from attnbench.oracle.inputs import Draw, rounded

        draw = Draw(case.seed)
        drawn = self.numbers(case.problem, draw)
        shapes = {name: value.shape for name, value in self._outputs(case, drawn, _as_it_is).items()}
        cotangents = {name: draw.normal(f"cotangent.{name}", *shape) for name, shape in shapes.items()}
        return rounded(replace(drawn, cotangents=cotangents), getattr(torch, case.given_dtype))

    def evaluate(
        self, case: Case, inputs: Inputs, *, noise: Any = None, keep: Any = None, fault: Any = None
    ) -> dict[str, Any]:
        """Outputs of the formula, and gradients; ``mistake`` replaces the formula."""
        from attnbench.operators.quantities import quantities

        if keep is not None:
            raise ValueError(f"{self.name} has no dropout, got a mask of what it keeps")

        def noisy(tensor: "torch.Tensor", terms: int = 0) -> "torch.Tensor":
            found: torch.Tensor = noise(noise.on_sum(tensor, terms))
            return found

        step = noisy if noise else _as_it_is
        return quantities(case, inputs, lambda given: self._outputs(case, given, step, fault), noise=noise)

    def yardsticks(self, case: Case, inputs: Inputs) -> Iterator[dict[str, Any]]:
        """Quantities of the formula, and of each of ``paths``, in the case's own dtype."""
        from attnbench.operators.quantities import quantities

        for formula in (self.formula, *self.paths()):
            yield quantities(case, inputs, partial(self._outputs, case, rounded=_as_it_is, formula=formula))

    def noise(self, roundoff: float, seed: int) -> Any:
        """Relative noise of one roundoff."""
        from attnbench.operators.rounding import Noise

        return Noise(roundoff, seed)

    def reference(self, case: Case, inputs: Inputs) -> Any:
        """A module that holds the parameters and computes the formula as it is given."""
        from attnbench.kernel import CalledModule

        def call(**given: Any) -> Any:
            return self.formula(case.problem, given, _as_it_is)

        module = CalledModule(call, inputs.parameters)
        return module.train(case.training).requires_grad_(case.tracks_parameters)

    def _outputs(
        self, case: Case, inputs: Inputs, rounded: Rounded, formula: Callable[..., Any] | None = None
    ) -> dict[str, "torch.Tensor"]:
        returned = (formula or self.formula)(case.problem, {**inputs.parameters, **inputs.arguments()}, rounded)
        found = returned if isinstance(returned, tuple) else (returned,)
        return dict(zip(self.outputs, found, strict=True))


def _as_it_is(tensor: "torch.Tensor", terms: int = 0) -> "torch.Tensor":  # noqa: ARG001
    return tensor
