"""What a loop over single numbers refuses: half precision, in which it adds up, and to be exported."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Implementation, Refusal
from attnbench.kernel import from_call

__all__ = ["from_loop"]

WIDE = ("float32", "float64")
# Seconds of a query, a key and a feature, forward and with backward, over the six loops on a 2-core x86-64 machine.
STEP_S, DIFFERENTIATED_STEP_S = 4e-5, 1.2e-4
# Seconds that a compiler takes for one, since it unrolls a loop: 0.015 to 0.3 over the six, on another such machine.
UNROLLED_STEP_S = 0.1


def from_loop(loop: Callable[..., Any], *, operator: str, source: str) -> Implementation:
    """Implementation of an operator that is a loop over single numbers; what it refuses stands above."""

    @wraps(loop)
    def in_wide(**given: Any) -> Any:
        for tensor in given.values():
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and (reason := _too_coarse(tensor.dtype)):
                raise Refusal(reason)
        return loop(**given)

    return from_call(in_wide, operator=operator, source=source, unsupported=_unsupported, predicted_s=_predicted_s)


def _unsupported(case: Case) -> str | None:
    if case.compiler == "export":
        return "torch.export cannot follow which score is the largest"
    return _too_coarse(case.dtype)


def _predicted_s(case: Case) -> float:
    problem = case.problem
    called_s = DIFFERENTIATED_STEP_S if case.differentiates else STEP_S
    step_s = UNROLLED_STEP_S if case.compiler else called_s
    return step_s * float(problem.sequences * problem.queries * problem.keys * problem.width)


def _too_coarse(dtype: object) -> str | None:
    """Why it is not for a dtype, or None: every sum of a loop is rounded after each term."""
    name = str(dtype).removeprefix("torch.")
    return None if name in WIDE else f"the loop adds up in the dtype of its tokens, for which {name} is too coarse"
