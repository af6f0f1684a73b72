"""Types of mutants, equivalent mutants and correct variants, and the loading of mutant sets."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from attnbench.cases import Case, Dtype, Mode
from attnbench.interface import Implementation, Operator, Policies
from attnbench.plugins.adapters import ModuleImplementation as Constructed
from attnbench.plugins.registry import PluginError, load
from attnbench.refusals import TypedRefusal

__all__ = ["Equivalent", "ModuleImplementation", "Mutant", "MutantList", "MutantSet", "load_mutant_set"]

Module = TypeVar("Module", bound=type[nn.Module])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changed:
    """An implementation that was made by changing a correct one."""

    implementation: Implementation

    @property
    def name(self) -> str:
        """Name of the implementation."""
        return self.implementation.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant(_Changed):
    """An implementation with one deliberate fault of a kind that occurs in real code."""

    # Check that must fail on the mutant.
    caught_by: str
    # What is wrong, and where the fault was seen or why it happens.
    why: str
    # Id of a case on which the check ``caught_by`` fails.
    shown_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalent(_Changed):
    """An equivalent mutant: a change that looks like a fault, but that no check can observe."""

    # Why no check can observe the change.
    proof: str
    # Returns whether the fact on which ``proof`` relies is true in a numerical example.
    holds: Callable[[], bool]
    # Id of the case on which a check would most likely observe the change.
    shown_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantSet:
    """The mutants, equivalent mutants and correct variants of one operator."""

    mutants: tuple[Mutant, ...]
    equivalents: tuple[Equivalent, ...] = ()
    # Correct implementations that round differently from the reference, or deviate as their policies declare.
    variants: tuple[Implementation, ...] = ()

    def implementations(self) -> Iterator[Implementation]:
        """Yield the implementation of each mutant, equivalent mutant and correct variant."""
        yield from (mutant.implementation for mutant in self.mutants)
        yield from (equivalent.implementation for equivalent in self.equivalents)
        yield from self.variants


def name_module(module: Callable[[Any], nn.Module]) -> str:
    """Return the name of a module class in snake case, without an underscore at the start."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", getattr(module, "__name__", "").removeprefix("_")).lower()


class ModuleImplementation(Implementation):
    """An implementation made from a module class; ``build`` returns a module of this class.

    ``name`` defaults to the name of the module class in snake case.
    """

    def __init__(
        self,
        module: Callable[[Any], nn.Module],
        *,
        name: str = "",
        operator: str = "multihead",
        policies: Policies | None = None,
        unsupported: Callable[[Case], TypedRefusal | str | None] = lambda _: None,
    ) -> None:
        self.operator = operator
        self.name = name or name_module(module)
        self.policies = policies or Policies()
        self._module = module
        self._unsupported = unsupported

    def unsupported(self, case: Case) -> TypedRefusal | str | None:
        """Return why the case is not supported, or None; the function given to the constructor decides."""
        return self._unsupported(case)

    def build(self, reference: Any) -> nn.Module:
        """Return a module of the module class, with the parameters of the reference."""
        return self._module(reference)


class MutantList(list[Mutant]):
    """A list of mutants of one topic. Calling the list returns a decorator that appends a module class as a mutant.

    ``problem`` is the problem of the case on which a mutant fails, unless the decorator names another one. ``prefix``
    is put before the name of each mutant.
    """

    def __init__(self, operator: str, problem: Any, *, prefix: str = "") -> None:
        super().__init__()
        self._operator = operator
        self._problem = problem
        self._prefix = prefix

    def __call__(
        self,
        caught_by: str,
        why: str,
        *,
        shown_by: Any = None,
        dtype: Dtype = "float32",
        mode: Mode = "eval",
        policies: Policies | None = None,
        constructed: bool = False,
        **changes: Any,
    ) -> Callable[[Module], Module]:
        """Return a decorator that makes a module class a mutant.

        The mutant fails the check ``caught_by`` on one case. The problem of the case is ``shown_by``, by default that
        of the list, with the fields in ``changes`` replaced. ``why`` says what is wrong. ``constructed``: the class has
        the constructor of the reference, not that of a formula.
        """
        problem = replace(shown_by or self._problem, **changes)
        case = Case(operator=self._operator, problem=problem, dtype=dtype, mode=mode).id

        def decorate(module: Module) -> Module:
            name = f"{self._prefix}{name_module(module)}"
            implementation: Implementation = (
                Constructed(module, name)
                if constructed
                else ModuleImplementation(module, name=name, operator=self._operator, policies=policies)
            )
            self.append(Mutant(implementation=implementation, caught_by=caught_by, why=why, shown_by=case))
            return module

        return decorate


def load_mutant_set(operator: Operator) -> MutantSet:
    """Load the mutant set that ``operator.mutants`` names; return an empty set if that name is empty.

    Raises: PluginError if the named object is not a MutantSet, or if it has an implementation of
    another operator.
    """
    if not operator.mutants:
        return MutantSet(mutants=())
    found = load(operator.mutants)
    if not isinstance(found, MutantSet):
        raise PluginError(
            f"operator {operator.name!r}: mutants must name a MutantSet, but {operator.mutants} is a "
            f"{type(found).__name__}"
        )
    for one in found.implementations():
        if one.operator != operator.name:
            raise PluginError(
                f"operator {operator.name!r}: its mutant set has {one.name!r}, a mutant of {one.operator!r}; "
                f"move this mutant to the set of its operator"
            )
    return found
