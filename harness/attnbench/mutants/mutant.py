"""A deliberately wrong implementation, the check that must catch it, and a case that shows it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from attnbench.cases import Case, Dtype, Mode
from attnbench.interface import Implementation, Policies
from attnbench.operators.multihead import MultiheadProblem

__all__ = ["PROBED", "Equivalent", "Mistakes", "Mutant", "Written", "Zoo", "shown"]

Module = TypeVar("Module", bound=type[nn.Module])
# Pairwise distinct sizes, so that a swapped axis changes a shape or a value; head_dim 8 is no power of 4.
CROSS = MultiheadProblem(batch=2, queries=5, keys=7, embed_dim=24, num_heads=3, bias=True, batch_first=True)
# Enough elements for what is off by little everywhere to rise above their rounding; head_dim 7.
PROBED: dict[str, Any] = {
    "batch": 4, "queries": 33, "keys": 47, "embed_dim": 21, "bias": False, "regime": "identity",
}  # fmt: skip


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
class Zoo:
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


class Written(Implementation):
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


class Mistakes(list[Mutant]):
    """Mutants of one subject; calling it decorates a module class as one more."""

    def __call__(
        self, caught_by: str, why: str, *, policies: Policies | None = None, **case: Any
    ) -> Callable[[Module], Module]:
        """Mark a module class as a mistake; ``case`` says in what the case that shows it differs from the plainest."""

        def mark(module: Module) -> Module:
            implementation = Written(module, policies=policies)
            self.append(Mutant(implementation=implementation, caught_by=caught_by, why=why, shown_by=shown(**case)))
            return module

        return mark


def shown(*, dtype: Dtype = "float32", mode: Mode = "eval", **changes: Any) -> str:
    """Id of the plainest case with some of its problem's fields changed."""
    return Case(operator="multihead", problem=replace(CROSS, **changes), dtype=dtype, mode=mode).id
