"""The decorator that makes a module class a mutant of multi-head attention."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from torch import nn

from attnbench.cases import Case, Dtype, Mode
from attnbench.interface import Policies
from attnbench.mutants.mutant import ModuleImplementation, Mutant
from attnbench.operators.multihead.suites import CROSS

__all__ = ["PROBED", "MultiheadMutants", "build_case_id"]

Module = TypeVar("Module", bound=type[nn.Module])
# Changes that give CROSS many elements. A mean over many elements has a small rounding error, so a
# check can detect a small error that all elements have. head_dim is then 21 / 3 = 7.
PROBED: dict[str, Any] = {
    "batch": 4, "queries": 33, "keys": 47, "embed_dim": 21, "bias": False, "regime": "identity",
}  # fmt: skip


class MultiheadMutants(list[Mutant]):
    """A list of mutants of one topic. Calling the list returns a decorator that appends a module class as a mutant."""

    def __call__(
        self, caught_by: str, why: str, *, policies: Policies | None = None, **case: Any
    ) -> Callable[[Module], Module]:
        """Return a decorator that makes a module class a mutant.

        The mutant fails the check ``caught_by`` on the case that ``build_case_id(**case)`` names.
        ``why`` says what is wrong.
        """

        def decorate(module: Module) -> Module:
            implementation = ModuleImplementation(module, policies=policies)
            self.append(
                Mutant(implementation=implementation, caught_by=caught_by, why=why, shown_by=build_case_id(**case))
            )
            return module

        return decorate


def build_case_id(*, dtype: Dtype = "float32", mode: Mode = "eval", **changes: Any) -> str:
    """Return the id of a case whose problem is ``CROSS`` with some fields changed."""
    return Case(operator="multihead", problem=replace(CROSS, **changes), dtype=dtype, mode=mode).id
