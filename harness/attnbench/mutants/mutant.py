"""A deliberately wrong implementation, the check that must catch it, and a case that shows it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from attnbench.cases import Case
from attnbench.interface import Implementation, Operator, Policies
from attnbench.plugins.registry import PluginError, load

__all__ = ["Equivalent", "ModuleImplementation", "Mutant", "MutantSet", "mutant_set"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mistake, as it happens in real code."""

    implementation: Implementation
    # Check that must fail on it.
    caught_by: str
    # Where the mistake was seen, or why it happens.
    why: str
    # Id of a case on which that check fails.
    shown_by: str

    @property
    def name(self) -> str:
        """Name of the mistake."""
        return self.implementation.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalent:
    """A change that looks like a mistake and cannot be seen by any check."""

    implementation: Implementation
    # Why nothing can see it.
    proof: str
    # Whether the fact that the proof rests on is one.
    holds: Callable[[], bool]
    # Id of the case on which it would show if it could.
    shown_by: str

    @property
    def name(self) -> str:
        """Name of the change."""
        return self.implementation.name


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantSet:
    """What proves the checks of one operator."""

    mutants: tuple[Mutant, ...]
    equivalents: tuple[Equivalent, ...] = ()
    # Correct implementations that round differently.
    variants: tuple[Implementation, ...] = ()

    def implementations(self) -> Iterator[Implementation]:
        """All of them."""
        yield from (mutant.implementation for mutant in self.mutants)
        yield from (equivalent.implementation for equivalent in self.equivalents)
        yield from self.variants


class ModuleImplementation(Implementation):
    """An implementation that is a module class, built from the reference; its name is the class's in snake case."""

    def __init__(
        self,
        module: Callable[[Any], nn.Module],
        *,
        operator: str = "multihead",
        policies: Policies | None = None,
        unsupported: Callable[[Case], str | None] = lambda _: None,
    ) -> None:
        self.operator = operator
        name = getattr(module, "__name__", "")
        self.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removeprefix("_")).lower()
        self.policies = policies or Policies()
        self._module = module
        self._unsupported = unsupported

    def unsupported(self, case: Case) -> str | None:
        """What its author says."""
        return self._unsupported(case)

    def build(self, reference: Any) -> nn.Module:
        """The module with the reference's weights."""
        return self._module(reference)


def mutant_set(operator: Operator) -> MutantSet:
    """The mutants that an operator names; an empty set where it names none.

    Raises: PluginError where the name leads to something else.
    """
    if not operator.mutants:
        return MutantSet(mutants=())
    found = load(operator.mutants)
    if not isinstance(found, MutantSet):
        raise PluginError(
            f"operator {operator.name!r}: mutants must name a MutantSet, and {operator.mutants} is a "
            f"{type(found).__name__}"
        )
    for one in found.implementations():
        if one.operator != operator.name:
            raise PluginError(
                f"operator {operator.name!r}: mutant {one.name!r} computes {one.operator!r}; name its set"
            )
    return found
