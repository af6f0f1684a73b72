"""The types of bugs and mutants, the situations in which they show, and the lists that collect them."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case, Dtype, Mode
from attnbench.interface import Implementation
from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.multihead.formula import Formula
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.operators.attention_core.suites import PLAIN
from attnbench.operators.multihead.suites import CROSS
from attnbench.plugins.adapters import ModuleImplementation as ConstructedImplementation
from attnbench.plugins.registry import load_operator

__all__ = [
    "HALF", "SHOWN", "Fault", "FaultList", "Shown", "Situation", "compare", "is_additive", "is_boolean",
    "is_transformed", "is_watched", "on", "on_core",
]  # fmt: skip

# Largest difference from the correct formula, relative to its largest element or 1, that counts as rounding. The
# smallest fault here, a bias rounded to float16, differs by ten times as much.
SHOWN = 1e-5
HALF = (torch.float16, torch.bfloat16)
FORMULAS: dict[str, type[nn.Module]] = {"multihead": Formula, "attention_core": CoreFormula}
Module = TypeVar("Module", bound=type[nn.Module])
Tensors = dict[str, Tensor]


def is_boolean(mask: Tensor | None) -> bool:
    """Whether a mask is given, and is boolean."""
    return mask is not None and mask.dtype == torch.bool


def is_additive(mask: Tensor | None) -> bool:
    """Whether a mask is given, and is floating point."""
    return mask is not None and mask.is_floating_point()


def is_transformed() -> bool:
    """Whether a transform of torch.func, such as ``vmap``, is active."""
    # Torch has no public function for this.
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001


def is_watched() -> bool:
    """Whether a compiler or a transform of torch.func runs the code, so that values of tensors cannot be read."""
    return torch.compiler.is_compiling() or is_transformed()


def compare(found: Tensors, right: Tensors) -> float:
    """Return the largest difference of named tensors, relative to the right tensor's largest element or 1.

    The difference is infinite if a tensor is missing, or has another shape, dtype or NaN elsewhere.
    """
    if found.keys() != right.keys():
        return math.inf
    return max((_compare_tensors(found[name].detach(), right[name].detach()) for name in right), default=0.0)


def _compare_tensors(found: Tensor, right: Tensor) -> float:
    if found.shape != right.shape or found.dtype != right.dtype or (found.isnan() != right.isnan()).any():
        return math.inf
    if not right.numel():
        return 0.0
    off = torch.where(found == right, 0.0, found.double() - right.double()).nan_to_num(nan=0.0, posinf=math.inf)
    return float(off.abs().max() / right.double().nan_to_num(posinf=0, neginf=0).abs().max().clamp(min=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A case, and a change of its inputs that no field of a case describes; None changes nothing."""

    case: Case
    prepare: Callable[[Tensors], None] | None = None

    def measure(self, implementation: Implementation) -> float:
        """Return the difference of outputs and gradients from the correct formula; infinite if a call raises."""
        right = self._run(ModuleImplementation(FORMULAS[self.case.operator], operator=self.case.operator))
        try:
            found = self._run(implementation)
        except Exception:  # noqa: BLE001  # any exception is the fault
            return math.inf
        return compare(found, right)

    def _run(self, implementation: Implementation) -> Tensors:
        operator = load_operator(self.case.operator)
        inputs = operator.inputs(self.case)
        if self.prepare is not None:
            self.prepare(inputs.tensors)
        candidate = Candidate(implementation, operator, self.case, inputs)
        torch.manual_seed(0)  # for dropout
        found = candidate.outputs
        return {**found, **candidate.gradients} if self.case.differentiates else found


def _situate(
    operator: str,
    problem: Any,
    *,
    dtype: Dtype = "float32",
    mode: Mode = "train",
    prepare: Callable[[Tensors], None] | None = None,
    **changes: Any,
) -> Situation:
    """Return a case of an operator: the problem with some fields changed."""
    case = Case(operator=operator, problem=replace(problem, **changes), dtype=dtype, mode=mode)
    return Situation(case=case, prepare=prepare)


# A case of multi-head attention, and one of attention on split heads, with some fields changed.
on = partial(_situate, "multihead", CROSS)
on_core = partial(_situate, "attention_core", PLAIN)


# What shows a fault: a situation, or a function of the module class that makes some calls and returns a difference.
Shown = Situation | Callable[[Any], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A wrong implementation: a bug of a public tracker that was made again, or a mutant of the same kind."""

    name: str
    origin: Literal["bug", "mutant"]
    # Numbers of the kinds in README.md; the first is the main one.
    kinds: tuple[int, ...]
    # What goes wrong, and how.
    mechanism: str
    # Address of the report. If ``inferred``, the report has the same mechanism elsewhere or under another condition;
    # without an address, the mechanism is known from no report.
    source: str
    inferred: bool
    # When the fault shows.
    condition: str
    module: type[nn.Module]
    implementation: Implementation
    # The smallest condition that shows the fault, and conditions beside it under which there is none.
    under: Shown
    beside: tuple[Shown, ...]

    def measure(self, shown: Shown) -> float:
        """Return the difference from the correct formula in a situation, or what a function of the module returns."""
        return shown.measure(self.implementation) if isinstance(shown, Situation) else shown(self.module)


class FaultList(list[Fault]):
    """The bugs and mutants of one topic; calling it returns a decorator that appends a module class.

    The docstring of the class says what goes wrong.
    """

    def __init__(self, operator: str = "multihead") -> None:
        super().__init__()
        self._operator = operator

    def __call__(
        self,
        origin: Literal["bug", "mutant"],
        *kinds: int,
        source: str,
        condition: str,
        under: Shown,
        beside: Sequence[Shown],
        inferred: bool = False,
        constructed: bool = False,
    ) -> Callable[[Module], Module]:
        """Return the decorator; ``constructed``: the class has the reference's constructor, not that of a formula."""

        def decorate(module: Module) -> Module:
            name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", module.__name__).lower()
            implementation: Implementation = (
                ConstructedImplementation(module, name)
                if constructed
                else ModuleImplementation(module, name=name, operator=self._operator)
            )
            self.append(Fault(
                name=name, origin=origin, kinds=kinds, mechanism=" ".join((module.__doc__ or "").split()),
                source=source, inferred=inferred, condition=condition, module=module, implementation=implementation,
                under=under, beside=tuple(beside),
            ))  # fmt: skip
            return module

        return decorate
