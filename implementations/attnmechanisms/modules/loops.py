"""Implementations that loop over single numbers and refuse half precision and ``torch.export``."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Implementation, Refusal
from attnbench.kernel import from_call
from attnbench.refusals import CannotCompile, NeedsDtype, TypedRefusal

__all__ = ["from_loop"]

# Dtypes in which a loop computes. Half precision is not precise enough, because a loop sums in the dtype of the tokens
# and rounds after each term.
WIDE = ("float32", "float64")
# Seconds of a call, divided by the product sequences · queries · keys · features. STEP_S is for a
# call without backward, DIFFERENTIATED_STEP_S for a call with backward. Both constants are for the
# six loops of this package on a 2-core x86-64 machine.
STEP_S, DIFFERENTIATED_STEP_S = 4e-5, 1.2e-4
# Seconds to compile a loop, divided by the product sequences · queries · keys · features. The
# compiler unrolls the loop. The measured quotient was 0.015 to 0.3 for the six loops of this
# package, on a different 2-core x86-64 machine than for STEP_S.
UNROLLED_STEP_S = 0.1


def from_loop(loop: Callable[..., Any], *, operator: str, source: str) -> Implementation:
    """Make an implementation from a function that loops over single numbers.

    The implementation refuses half precision and ``torch.export``.
    """

    @wraps(loop)
    def call_loop(**given: Any) -> Any:
        for tensor in given.values():
            if (
                isinstance(tensor, Tensor)
                and tensor.is_floating_point()
                and (reason := _explain_coarse_dtype(tensor.dtype))
            ):
                raise Refusal(reason)
        return loop(**given)

    return from_call(
        call_loop, operator=operator, source=source, unsupported=_explain_refusal, predicted_s=_predict_call_s
    )


def _explain_refusal(case: Case) -> TypedRefusal | None:
    if case.compiler == "export":
        return CannotCompile(why="values", compiler="torch.export")
    return _explain_coarse_dtype(case.dtype)


def _predict_call_s(case: Case) -> float:
    problem = case.problem
    called_s = DIFFERENTIATED_STEP_S if case.differentiates else STEP_S
    step_s = UNROLLED_STEP_S if case.compiler else called_s
    return step_s * float(problem.sequences * problem.queries * problem.keys * problem.width)


def _explain_coarse_dtype(dtype: object) -> TypedRefusal | None:
    """Return why a loop refuses a dtype, or None if the loop computes in the dtype."""
    name = str(dtype).removeprefix("torch.")
    return None if name in WIDE else NeedsDtype(dtypes=WIDE)
