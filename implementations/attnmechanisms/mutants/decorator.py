"""Marking a module class as a mistake of every mechanism that it fits.

A mistake replaces a step of a mechanism, whichever that is: what it calls by ``super()`` is the mechanism's own step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from attnbench.cases import Case, Dtype, Mode
from attnbench.mutants.mutant import Mutant
from attnmechanisms.mutants.formula import Steps, changed
from attnmechanisms.operators import MECHANISMS, suites

__all__ = [
    "ADDITIVE",
    "BLOCK",
    "DOT",
    "LONG",
    "ODD",
    "PROJECTED",
    "RAW",
    "SCALED",
    "SHORT",
    "SINGLE",
    "SIZES",
    "WITH_EMPTY",
    "WITH_PARAMETERS",
    "MechanismMutants",
]

Module = TypeVar("Module", bound=type[Steps])
# Sizes of the case that shows a mistake: those of the first cases of every mechanism, unless it takes others.
SIZES, _, ODD, _, SHORT, LONG = suites.SIZES
ALL = tuple(MECHANISMS)
RAW, SCALED, ADDITIVE, DOT, SINGLE, BLOCK = ALL
# The block has no sequence without any token.
WITH_EMPTY = tuple(name for name in ALL if name != BLOCK)
WITH_PARAMETERS = tuple(name for name in ALL if name != RAW)
# Queries and keys have weights of their own, and scores a scale.
PROJECTED = (SCALED, SINGLE, BLOCK)


class MechanismMutants(list[Mutant]):
    """Mutants of one subject; calling it decorates a module class as one more in each of its mechanisms."""

    def __call__(
        self,
        caught_by: str,
        why: str,
        *,
        of: Sequence[str] = ALL,
        mask: str = "none",
        regime: str = "plain",
        dtype: Dtype = "float64",
        mode: Mode = "eval",
        sizes: Mapping[str, int] = SIZES,
    ) -> Callable[[Module], Module]:
        """Make a mistake in these mechanisms; the rest says how the case that shows it differs from the plainest."""

        def mark(module: Module) -> Module:
            for operator in of:
                problem = MECHANISMS[operator].problem
                own: dict[str, Any] = {n: m for n, m in sizes.items() if n in problem.__dataclass_fields__}
                case = Case(
                    operator=operator,
                    problem=problem(mask=mask, regime=regime, **own),
                    dtype=dtype,
                    # Without parameters there is nothing but the tokens that takes a gradient.
                    mode="frozen" if operator == RAW and mode == "eval" else mode,
                )
                implementation, why_here = changed(operator, module), f"{why} (in {operator})"
                self.append(Mutant(implementation=implementation, caught_by=caught_by, why=why_here, shown_by=case.id))
            return module

        return mark
