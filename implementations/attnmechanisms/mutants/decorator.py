"""The decorator that makes a module class a mutant of several mechanisms.

The class overrides one or more steps of ``MechanismFormula``. ``super()`` in the class calls the
step of the mutated mechanism.
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
# Sizes of the cases on which mutants fail, from ``suites.SIZES``. SIZES is the default. ODD has
# tokens of an odd width, SHORT has sequences of one token, and LONG has a sequence of more than 32
# tokens.
SIZES, _, ODD, _, SHORT, LONG = suites.SIZES
ALL = tuple(MECHANISMS)
RAW, SCALED, ADDITIVE, DOT, SINGLE, BLOCK = ALL
# WITH_EMPTY: mechanisms with cases in which one sequence consists of padding only, which are all
# mechanisms except the residual block. WITH_PARAMETERS: all mechanisms except raw self-attention.
WITH_EMPTY = tuple(name for name in ALL if name != BLOCK)
WITH_PARAMETERS = tuple(name for name in ALL if name != RAW)
# Mechanisms with a scale and with separate projections for queries and keys.
PROJECTED = (SCALED, SINGLE, BLOCK)


class MechanismMutants(list[Mutant]):
    """A list of mutants of one topic. Calling the list returns a decorator that appends a mutant for each mechanism."""

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
        """Return a decorator that makes a module class a mutant of each mechanism in ``of``.

        ``why`` describes the fault. The arguments from ``mask`` to ``sizes`` define a case on which
        the check ``caught_by`` fails.
        """

        def decorate(module: Module) -> Module:
            for operator in of:
                problem = MECHANISMS[operator].problem
                own: dict[str, Any] = {n: m for n, m in sizes.items() if n in problem.__dataclass_fields__}
                case = Case(
                    operator=operator,
                    problem=problem(mask=mask, regime=regime, **own),
                    dtype=dtype,
                    # Raw self-attention has no parameters, so the call mode is ``frozen``: only the
                    # tokens require a gradient.
                    mode="frozen" if operator == RAW and mode == "eval" else mode,
                )
                implementation, why_here = replace_steps(operator, module), f"{why} (in {operator})"
                self.append(Mutant(implementation=implementation, caught_by=caught_by, why=why_here, shown_by=case.id))
            return module

        return decorate
