"""Cases of the mechanisms: every mask in every dtype, in every size, and in every call mode without a compiler."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from attnbench.cases import DTYPES, NESTED, Case, Dtype, Level, Mode
from attnmechanisms.operators.problem import REGIMES, MechanismProblem

__all__ = ["VERSION", "make_suite"]

# Version of the suites, raised with every change of a suite. Results of different versions are not comparable.
VERSION = "2"
# In each entry the numbers of sequences, tokens and features differ, so that a transposed or swapped axis changes a
# shape or a value. A problem class uses only those sizes that are among its fields.
SIZES: tuple[dict[str, int], ...] = (
    # Heads of width 2; the output is narrower than the input.
    {"sequences": 2, "length": 5, "width": 6, "out_width": 5, "heads": 3},
    # Heads of width 4; the output is as wide as the input.
    {"sequences": 3, "length": 4, "width": 8, "out_width": 8, "heads": 2},
    # One head; tokens of an odd width; one sequence.
    {"sequences": 1, "length": 7, "width": 5, "out_width": 9, "heads": 1},
    # Heads of width 3; a sequence has more than 16 tokens. A register of 512 bits holds 16 float32 numbers.
    {"sequences": 2, "length": 17, "width": 6, "out_width": 4, "heads": 2},
    # Many sequences of one token each; heads of width 1.
    {"sequences": 6, "length": 1, "width": 5, "out_width": 7, "heads": 5},
    # A sequence longer than a tile of 32 tokens; a token has more than 16 features. A register
    # of 512 bits holds 16 float32 numbers.
    {"sequences": 1, "length": 34, "width": 18, "out_width": 21, "heads": 6},
)
MODES: tuple[Mode, ...] = ("inference", "eval", "train", "inference_mode", "frozen", "tuning")
# Call modes for an operator without parameters. In these modes, no tensor except the tokens requires a gradient.
WITHOUT_PARAMETERS: tuple[Mode, ...] = ("frozen", "inference", "inference_mode")
COMPILED: tuple[Mode, ...] = ("aot", "exported")
SMOOTH = tuple(regime for regime in REGIMES if regime != "huge")


def make_suite(operator: str, problem: type[MechanismProblem], level: Level) -> Sequence[Case]:
    """Return the cases of a suite, whose name is ``level``.

    The suite ``slow`` has the cases of ``full``. The suites ``gpu`` and ``huge`` have no cases.
    """
    if level not in NESTED:
        return ()
    generators = {"quick": _generate_quick, "core": _generate_core, "full": _generate_full, "slow": _generate_nothing}
    cases = (case for name in NESTED[: NESTED.index(level) + 1] for case in generators[name](operator, problem))
    return list(dict.fromkeys(cases))


def _make_case(
    operator: str, problem: type[MechanismProblem], size: int, dtype: Dtype = "float64", mode: Mode | None = None,
    **changes: Any,
) -> Case:  # fmt: skip
    sizes: dict[str, Any] = {name: n for name, n in SIZES[size].items() if name in problem.__dataclass_fields__}
    made = problem(**sizes, **changes)
    return Case(operator=operator, problem=made, dtype=dtype, mode=mode or _choose_mode(operator))


def _choose_mode(operator: str) -> Mode:
    """Return the call mode in which the tokens and all parameters require gradients."""
    return "frozen" if operator == "raw_self_attention" else "eval"


def _choose_modes(operator: str) -> tuple[Mode, ...]:
    return WITHOUT_PARAMETERS if operator == "raw_self_attention" else MODES


def _generate_quick(operator: str, problem: type[MechanismProblem]) -> Iterator[Case]:
    for mask in problem.masks:
        yield _make_case(operator, problem, 0, mask=mask)
    yield _make_case(operator, problem, 1, "float32", "inference", mask="pad")


def _generate_core(operator: str, problem: type[MechanismProblem]) -> Iterator[Case]:
    for mask, dtype in product(problem.masks, DTYPES):
        yield _make_case(operator, problem, 0, dtype, mask=mask)
    for mask, mode in product(problem.masks, _choose_modes(operator)):
        yield _make_case(operator, problem, 0, "float32", mode, mask=mask)
    for size, mask in product(range(1, len(SIZES)), problem.masks):
        yield _make_case(operator, problem, size, "float32", mask=mask)
    for dtype, mode in product(DTYPES, _choose_modes(operator)):
        yield _make_case(operator, problem, 0, dtype, mode, mask="pad")
    for size, mode in product(range(len(SIZES)), _choose_modes(operator)):
        yield _make_case(operator, problem, size, "float32", mode, mask="pad")
    # Cases of the regime ``huge`` compute no gradients. In most mechanisms, the attention weights are
    # so peaked that gradients would consist of rounding errors only.
    for dtype, mask in product(DTYPES, ("none", "pad")):
        yield _make_case(operator, problem, 0, dtype, "inference", mask=mask, regime="huge")
    for mode, mask in product(COMPILED, ("none", "pad")):
        yield _make_case(operator, problem, 0, "float32", mode, mask=mask)


def _generate_full(operator: str, problem: type[MechanismProblem]) -> Iterator[Case]:
    for size, regime, dtype in product(range(len(SIZES)), SMOOTH, DTYPES):
        yield _make_case(operator, problem, size, dtype, mask="pad", regime=regime)
    for mask, dtype, mode in product(problem.masks, DTYPES, _choose_modes(operator)):
        yield _make_case(operator, problem, 0, dtype, mode, mask=mask)
    for size, mask, mode in product(range(1, len(SIZES)), problem.masks, _choose_modes(operator)):
        # In the mode ``tuning``, only parameters require gradients. This mode is left out if the
        # only sequence is fully padded, because the output then does not depend on the parameters.
        if mask != "padempty" or mode != "tuning" or SIZES[size]["sequences"] > 1:
            yield _make_case(operator, problem, size, "float32", mode, mask=mask)


def _generate_nothing(operator: str, problem: type[MechanismProblem]) -> Iterator[Case]:  # noqa: ARG001
    return iter(())
