"""The decorator that makes a module class a mutant of attention on split heads."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from attnbench.cases import Case, Dtype, Mode
from attnbench.interface import Policies
from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.mutant import ModuleImplementation, Mutant
from attnbench.operators.attention_core import AttentionCoreProblem
from attnbench.operators.attention_core.suites import PLAIN

__all__ = ["CoreMutants"]

Module = TypeVar("Module", bound=type[CoreFormula])


class CoreMutants(list[Mutant]):
    """A list of mutants of one topic. Calling the list returns a decorator that appends a module class as a mutant."""

    def __call__(
        self,
        caught_by: str,
        why: str,
        *,
        shown_by: AttentionCoreProblem = PLAIN,
        dtype: Dtype = "float32",
        mode: Mode = "eval",
        policies: Policies | None = None,
        **changes: Any,
    ) -> Callable[[Module], Module]:
        """Return a decorator that makes a module class a mutant.

        The mutant fails the check ``caught_by`` on one case. The problem of the case is
        ``shown_by`` with the fields in ``changes`` replaced. ``why`` says what is wrong.
        """
        case = Case(operator="attention_core", problem=replace(shown_by, **changes), dtype=dtype, mode=mode)

        def decorate(module: Module) -> Module:
            implementation = ModuleImplementation(module, operator="attention_core", policies=policies)
            implementation.name = f"core_{implementation.name}"
            self.append(Mutant(implementation=implementation, caught_by=caught_by, why=why, shown_by=case.id))
            return module

        return decorate
