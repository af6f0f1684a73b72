"""Marking a module class as a mutant of multi-head attention."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from torch import nn

from attnbench.cases import Case, Dtype, Mode
from attnbench.interface import Policies
from attnbench.mutants.mutant import ModuleImplementation, Mutant
from attnbench.operators.multihead import MultiheadProblem

__all__ = ["PROBED", "MultiheadMutants", "shown_by"]

Module = TypeVar("Module", bound=type[nn.Module])
# Pairwise distinct sizes, so that a swapped axis changes a shape or a value; head_dim 8 is no power of 4.
CROSS = MultiheadProblem(batch=2, queries=5, keys=7, embed_dim=24, num_heads=3, bias=True, batch_first=True)
# Enough elements for what is off by little everywhere to rise above their rounding; head_dim 7.
PROBED: dict[str, Any] = {
    "batch": 4, "queries": 33, "keys": 47, "embed_dim": 21, "bias": False, "regime": "identity",
}  # fmt: skip


class MultiheadMutants(list[Mutant]):
    """Mutants of one subject; calling it decorates a module class as one more."""

    def __call__(
        self, caught_by: str, why: str, *, policies: Policies | None = None, **case: Any
    ) -> Callable[[Module], Module]:
        """Mark a module class as a mistake; ``case`` says in what the case that shows it differs from the plainest."""

        def mark(module: Module) -> Module:
            implementation = ModuleImplementation(module, policies=policies)
            self.append(Mutant(implementation=implementation, caught_by=caught_by, why=why, shown_by=shown_by(**case)))
            return module

        return mark


def shown_by(*, dtype: Dtype = "float32", mode: Mode = "eval", **changes: Any) -> str:
    """Id of the plainest case with some of its problem's fields changed."""
    return Case(operator="multihead", problem=replace(CROSS, **changes), dtype=dtype, mode=mode).id
