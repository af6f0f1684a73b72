"""The whole model on the path of a function: its output and the gradients of its weights, against float64.

What may be wrong by rounding follows from the model itself. In each dtype it runs twice with attention that is right:
with the plain formula in this dtype, and with the exact formula, rounded. The larger error of the two is multiplied by
the factor of the error budget of single calls. It counts as at least one rounding of the largest element, for gradients
of the largest of all: the gradient of a key bias is a sum that cancels, and each algorithm rounds it in its own way.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.oracle.error_budget import FACTOR
from attnbench.records.value_facts import store_number
from attnmodels import formula
from attnmodels.facts import END_TO_END, OUTPUT, Situation, WholeError
from attnmodels.inputs import Plan
from attnmodels.recording import Attend, Function, Wrap, read_demand, run_plan

__all__ = ["Budget", "find_first_tensor", "find_whole_reason", "make_budget", "run_whole", "select_tokens"]


@dataclass(frozen=True, slots=True)
class Budget:
    """Output and gradients in float64, and the error that each may have."""

    exact: dict[str, Tensor]
    allowed: dict[str, float]

    def judge(self, found: dict[str, Tensor]) -> tuple[WholeError, ...]:
        """Return the error of the output and, if gradients were found, that of the worst of them by its own budget."""
        output, *gradients = (
            WholeError(
                tensor=name, error=store_number(_find_largest(one - self.exact[name])),
                allowed=store_number(self.allowed[name]),
            )
            for name, one in found.items()
        )  # fmt: skip
        return (output, max(gradients, key=lambda one: one.share)) if gradients else (output,)


def find_whole_reason(model: nn.Module, situation: Situation) -> str | None:
    """Return why a whole model has no error budget in the dtype of a situation; None if it has one."""
    chooses = any("experts" in name for name, _ in model.named_modules())
    return "rounding chooses the experts" if chooses and END_TO_END[situation] != "float32" else None


def make_budget(exact: Any, model: Any, plan: Plan, attend: Attend, *, gradients: bool = True) -> Budget:
    """Run a model in float64 (``exact``), and in its own dtype with two forms of attention that are right.

    Raises: ArithmeticError where the dtype is too narrow for the model.
    """
    wanted = run_whole(exact, plan, _Formula(torch.float64).replace, attend, widen=True, gradients=gradients)
    rounding = [
        run_whole(model, plan, _Formula(dtype).replace, attend, gradients=gradients) for dtype in (None, torch.float64)
    ]
    eps = torch.finfo(next(model.parameters()).dtype).eps
    least = max((eps * _find_largest(one) for name, one in wanted.items() if name != OUTPUT), default=0.0)
    allowed = {
        name: FACTOR * max(
            eps * _find_largest(one) if name == OUTPUT else least,
            *(_find_largest(found[name] - one) for found in rounding),
        )
        for name, one in wanted.items()
    }  # fmt: skip
    if not all(map(math.isfinite, allowed.values())):
        raise ArithmeticError("the output or a gradient is not finite with exact attention")
    return Budget(wanted, allowed)


def run_whole(
    model: Any,
    plan: Plan,
    wrap: Wrap,
    attend: Attend,
    *,
    widen: bool = False,
    gradients: bool = True,
) -> dict[str, Tensor]:
    """Return the output of the tokens, and the gradient of each parameter of the output's product with noise."""
    (output,) = run_plan(model, plan, lambda _: wrap, attend, widen=widen, gradients=gradients)
    real = select_tokens(find_first_tensor(output), plan)
    found = {OUTPUT: real.detach().double()}
    if not gradients:
        return found
    cotangent = torch.randn(real.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    named = {name: one for name, one in model.named_parameters() if one.requires_grad}
    derived = torch.autograd.grad((real.double() * cotangent).sum(), list(named.values()), allow_unused=True)
    return found | {
        name: torch.zeros_like(one, dtype=torch.float64) if gradient is None else gradient.double()
        for (name, one), gradient in zip(named.items(), derived, strict=True)
    }


def select_tokens(output: Tensor, plan: Plan) -> Tensor:
    """Return the rows of an output that belong to tokens, without those of padding."""
    queries = plan.forwards[0].queries
    return output if queries is None else output[queries.real]


def find_first_tensor(output: Any) -> Tensor:
    """Return the tensor that a model returns first."""
    found: Tensor = output if isinstance(output, Tensor) else output[0]
    return found


def _find_largest(one: Tensor) -> float:
    return float(one.abs().amax()) if one.numel() else 0.0


@dataclass(frozen=True, slots=True)
class _Formula:
    """The formula of attention, with the mask in full, computed in a dtype; None: in that of the call."""

    dtype: torch.dtype | None

    def replace(self, _: Function) -> Function:
        """Return the formula in place of a function."""
        return self

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        q, k, v = (one.to(self.dtype or query.dtype) for one in (query, key, value))
        output = formula.attend(read_demand(module, q, k, attention_mask, others), q, k, v)
        return output.transpose(1, 2).to(query.dtype).contiguous(), None
