"""The decorator that makes a module class a mutant of every mechanism that it fits.

The class overrides a step of ``MechanismFormula``. In each mechanism, ``super()`` calls that mechanism's own step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from attnbench.cases import Case, Dtype, Mode
from attnbench.mutants.mutant import Mutant
from attnmechanisms.mutants.formula import MechanismFormula, replace_steps
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

Module = TypeVar("Module", bound=type[MechanismFormula])
# Sizes of the cases that show mutants. The default is SIZES, the sizes of the first cases of every mechanism.
SIZES, _, ODD, _, SHORT, LONG = suites.SIZES
ALL = tuple(MECHANISMS)
RAW, SCALED, ADDITIVE, DOT, SINGLE, BLOCK = ALL
# The residual block has no cases with a sequence of padding only.
WITH_EMPTY = tuple(name for name in ALL if name != BLOCK)
WITH_PARAMETERS = tuple(name for name in ALL if name != RAW)
# Mechanisms that have a scale, and separate projections for queries and keys.
PROJECTED = (SCALED, SINGLE, BLOCK)


class MechanismMutants(list[Mutant]):
    """The mutants of one topic; a call of the list returns a decorator, which appends a mutant for each mechanism."""

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
        """Make a module class a mutant of the mechanisms ``of``; the other keywords define the case that shows it."""

        def decorate(module: Module) -> Module:
            for operator in of:
                problem = MECHANISMS[operator].problem
                own: dict[str, Any] = {n: m for n, m in sizes.items() if n in problem.__dataclass_fields__}
                case = Case(
                    operator=operator,
                    problem=problem(mask=mask, regime=regime, **own),
                    dtype=dtype,
                    # Raw self-attention has no parameters: only the tokens get a gradient.
                    mode="frozen" if operator == RAW and mode == "eval" else mode,
                )
                implementation, why_here = replace_steps(operator, module), f"{why} (in {operator})"
                self.append(Mutant(implementation=implementation, caught_by=caught_by, why=why_here, shown_by=case.id))
            return module

        return decorate
