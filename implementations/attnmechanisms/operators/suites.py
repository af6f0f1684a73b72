"""Cases of the mechanisms: every mask in every dtype, at every size and every way of being called."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from attnbench.cases import DTYPES, NESTED, Case, Dtype, Level, Mode
from attnmechanisms.operators.problem import REGIMES, MechanismProblem

__all__ = ["VERSION", "suite"]

# Raised with every change: results are comparable at an equal one.
VERSION = "2"
# Pairwise distinct, so that a transposed or swapped axis changes a shape or a value, where there are heads and another
# width for what comes out. Heads of 2, and fewer features than came in; of 4, as many; one alone, an odd width, a
# sequence alone; heads of 3, a length beyond a vector register's; one token in more sequences than usual, heads of 1;
# a length beyond a tile's, a width beyond a register's.
SIZES: tuple[dict[str, int], ...] = (
    {"sequences": 2, "length": 5, "width": 6, "out_width": 5, "heads": 3},
    {"sequences": 3, "length": 4, "width": 8, "out_width": 8, "heads": 2},
    {"sequences": 1, "length": 7, "width": 5, "out_width": 9, "heads": 1},
    {"sequences": 2, "length": 17, "width": 6, "out_width": 4, "heads": 2},
    {"sequences": 6, "length": 1, "width": 5, "out_width": 7, "heads": 5},
    {"sequences": 1, "length": 34, "width": 18, "out_width": 21, "heads": 6},
)
MODES: tuple[Mode, ...] = ("inference", "eval", "train", "inference_mode", "frozen", "tuning")
# Without parameters nothing but the tokens takes a gradient.
WITHOUT_PARAMETERS: tuple[Mode, ...] = ("frozen", "inference", "inference_mode")
COMPILED: tuple[Mode, ...] = ("aot", "exported")
SMOOTH = tuple(regime for regime in REGIMES if regime != "huge")


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
    sizes: dict[str, Any] = {name: n for name, n in SIZES[size].items() if name in problem.__dataclass_fields__}
    made = problem(**sizes, **changes)
    return Case(operator=operator, problem=made, dtype=dtype, mode=mode or _plain(operator))


def _plain(operator: str) -> Mode:
    """Mode in which everything takes a gradient that can."""
    return "frozen" if operator == "raw_self_attention" else "eval"


def _modes(operator: str) -> tuple[Mode, ...]:
    return WITHOUT_PARAMETERS if operator == "raw_self_attention" else MODES


def _quick(operator: str, problem: type[MechanismProblem]) -> Iterator[Case]:
    for mask in problem.masks:
        yield _case(operator, problem, 0, mask=mask)
    yield _case(operator, problem, 1, "float32", "inference", mask="pad")


def _core(operator: str, problem: type[MechanismProblem]) -> Iterator[Case]:
    for mask, dtype in product(problem.masks, DTYPES):
        yield _case(operator, problem, 0, dtype, mask=mask)
    for mask, mode in product(problem.masks, _modes(operator)):
        yield _case(operator, problem, 0, "float32", mode, mask=mask)
    for size, mask in product(range(1, len(SIZES)), problem.masks):
        yield _case(operator, problem, size, "float32", mask=mask)
    for dtype, mode in product(DTYPES, _modes(operator)):
        yield _case(operator, problem, 0, dtype, mode, mask="pad")
    for size, mode in product(range(len(SIZES)), _modes(operator)):
        yield _case(operator, problem, size, "float32", mode, mask="pad")
    # Of rows so sharp gradients are nothing but what rounding leaves.
    for dtype, mask in product(DTYPES, ("none", "pad")):
        yield _case(operator, problem, 0, dtype, "inference", mask=mask, regime="huge")
    for mode, mask in product(COMPILED, ("none", "pad")):
        yield _case(operator, problem, 0, "float32", mode, mask=mask)


def _full(operator: str, problem: type[MechanismProblem]) -> Iterator[Case]:
    for size, regime, dtype in product(range(len(SIZES)), SMOOTH, DTYPES):
        yield _case(operator, problem, size, dtype, mask="pad", regime=regime)
    for mask, dtype, mode in product(problem.masks, DTYPES, _modes(operator)):
        yield _case(operator, problem, 0, dtype, mode, mask=mask)
    for size, mask, mode in product(range(1, len(SIZES)), problem.masks, _modes(operator)):
        # Of one sequence without any token nothing depends on a parameter.
        if mask != "padempty" or mode != "tuning" or SIZES[size]["sequences"] > 1:
            yield _case(operator, problem, size, "float32", mode, mask=mask)


def _none(operator: str, problem: type[MechanismProblem]) -> Iterator[Case]:  # noqa: ARG001
    return iter(())
