"""Cases of the mechanisms: every mask in every dtype and every way of being called, at pairwise distinct sizes."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from attnbench.cases import DTYPES, NESTED, Case, Dtype, Level, Mode
from attnbench.operators.mechanisms.problem import REGIMES, MechanismProblem

__all__ = ["VERSION", "suite"]

# Raised with every change: results are comparable at an equal one.
VERSION = "1"
# Batch, length and width; a transposed or swapped axis then changes a shape or a value. One of everything; a sequence
# alone; a length beyond a vector register's.
SIZES = ((2, 5, 6), (3, 4, 8), (1, 7, 4), (2, 17, 6))
MODES: tuple[Mode, ...] = ("inference", "eval", "train", "inference_mode")
# Without parameters nothing but the tokens takes a gradient.
WITHOUT_PARAMETERS: tuple[Mode, ...] = ("inference", "frozen", "inference_mode")


def suite(operator: str, problem: type[MechanismProblem], level: Level) -> Sequence[Case]:
    """Cases of a level; ``slow`` adds none to ``full``, and there is nothing for a GPU alone."""
    if level not in NESTED:
        return ()
    steps = {"quick": _quick, "core": _core, "full": _full, "slow": _none}
    made = (case for one in NESTED[: NESTED.index(level) + 1] for case in steps[one](operator, problem))
    return list(dict.fromkeys(made))


def _case(
    operator: str, problem: type[MechanismProblem], size: int, dtype: Dtype = "float64", mode: Mode | None = None,
    **changes: Any,
) -> Case:  # fmt: skip
    batch, length, width = SIZES[size]
    names = problem.__dataclass_fields__
    # Another width for what comes out, and heads of 2, where there are such.
    own = {"out_width": width - 1, "heads": width // 2}
    sizes: dict[str, Any] = {name: value for name, value in own.items() if name in names}
    made = problem(sequences=batch, length=length, width=width, **sizes, **changes)
    return Case(operator=operator, problem=made, dtype=dtype, mode=mode or _modes(operator)[1])


def _modes(operator: str) -> tuple[Mode, ...]:
    return WITHOUT_PARAMETERS if operator == "raw_self_attention" else MODES


def _quick(operator: str, problem: type[MechanismProblem]) -> Iterator[Case]:
    for mask in problem.masks:
        yield _case(operator, problem, 0, mask=mask)
    yield _case(operator, problem, 1, "float32", _modes(operator)[0], mask="pad")


def _core(operator: str, problem: type[MechanismProblem]) -> Iterator[Case]:
    for mask, dtype in product(problem.masks, DTYPES):
        yield _case(operator, problem, 0, dtype, mask=mask)
    for mask, mode in product(problem.masks, _modes(operator)):
        yield _case(operator, problem, 0, "float32", mode, mask=mask)
    for size, mask in product(range(1, len(SIZES)), problem.masks):
        yield _case(operator, problem, size, "float32", mask=mask)


def _full(operator: str, problem: type[MechanismProblem]) -> Iterator[Case]:
    for size, regime, dtype in product(range(len(SIZES)), REGIMES, DTYPES):
        yield _case(operator, problem, size, dtype, mask="pad", regime=regime)


def _none(operator: str, problem: type[MechanismProblem]) -> Iterator[Case]:  # noqa: ARG001
    return iter(())
