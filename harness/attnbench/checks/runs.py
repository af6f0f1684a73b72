"""Comparing two calls of one implementation, and catching the exceptions of a call."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import Case
from attnbench.checks.observations import Agree, Equal, Observation
from attnbench.interface import Inputs, Refusal
from attnbench.records.value_facts import Phrase, Rows, phrase

__all__ = [
    "OTHER",
    "compare_bitwise",
    "compare_runs",
    "compute_gradient_alone",
    "describe_exception",
    "draw_again",
    "has_masked_rows",
    "has_same_bits",
    "try_call",
]

Result = TypeVar("Result")
# Largest number of characters of an exception's message that a finding quotes.
MESSAGE = 200
# Factor by which checks multiply all parameters of a module to get other parameters. The products are exact in every
# dtype, and every output changes.
OTHER = -0.5


def has_masked_rows(candidate: Candidate) -> bool:
    """Whether every key is hidden from some query.

    Raises: Refusal if this is so and the policies declare NaN there.
    """
    found = bool(candidate.operator.hidden_rows(candidate.case, candidate.inputs))
    policies = candidate.implementation.policies
    if found and "nan" in (policies.hidden_rows, policies.hidden_row_gradients):
        raise Refusal(phrase("nan_declared"))
    return found


def compare_runs(
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    how: Phrase | str,
    *,
    rows: Rows = "",
    contiguous: dict[str, Tensor] | None = None,
) -> Iterator[Observation]:
    """Observe that two calls agree in each quantity that both calls returned.

    ``how`` says how the two calls differ. ``contiguous`` is described at ``Agree``.
    """
    for name in [name for name in found if name in expected]:
        yield Agree(
            value=found[name].detach(),
            expected=expected[name].detach(),
            quantity=name,
            how=how,
            rows=rows,
            contiguous=contiguous,
        )


def compare_bitwise(
    candidate: Candidate, value: Tensor, expected: Tensor, how: Phrase | str, quantity: str = "output"
) -> Observation:
    """Observe that two calls give the same bits of a quantity.

    If the implementation declares the quantity not deterministic, observe that the two values agree
    within twice the error budget.
    """
    value, expected = value.detach(), expected.detach()
    if candidate.implementation.policies.repeats_bitwise(quantity, candidate.case.device):
        return Equal(value=value, expected=expected, quantity=quantity, how=how)
    return Agree(value=value, expected=expected, quantity=quantity, how=how)


def has_same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and elements; NaN in both is equal, too."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def draw_again(candidate: Candidate, *, further: int = 1, **changes: Any) -> tuple[Case, Inputs]:
    """Return the candidate's case with another seed and some fields of its problem changed, and its inputs.

    The seed is ``further`` larger. The inputs have the parameters of the candidate, and are on its device.
    """
    problem = candidate.case.problem
    case = candidate.case.with_problem(seed=problem.seed + further, **changes)
    device = next(iter(candidate.inputs.tensors.values())).device
    drawn = candidate.operator.inputs(case).map_tensors(lambda tensor: tensor.to(device))
    return case, replace(drawn, parameters=candidate.inputs.parameters)


def compute_gradient_alone(candidate: Candidate, tensor: Tensor) -> Tensor:
    """Return the gradient with respect to an input or a parameter while no other tensor requires a gradient."""
    tracked = [
        one for one in (*candidate.inputs.tensors.values(), *candidate.parameters().values()) if one.requires_grad
    ]
    try:
        for one in tracked:
            one.requires_grad_(one is tensor)
        (found,) = torch.autograd.grad(candidate.compute_loss(candidate.run()), [tensor])
    finally:
        for one in tracked:
            one.requires_grad_()
    return found


def try_call(step: Callable[[], Result]) -> tuple[Result | None, str]:
    """Call ``step``; return its result and an empty string, or None and a one-line description of its exception.

    Raises: Refusal or Malformed if ``step`` raises it; callers must not report these two as a fault of ``step``.
    """
    try:
        return step(), ""
    except (Refusal, Malformed):
        raise
    except Exception as error:  # noqa: BLE001  # an implementation may raise anything; the exception is the finding
        return None, describe_exception(error)


def describe_exception(error: Exception) -> str:
    """Return type and message of an exception on one line of bounded length."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:MESSAGE]}"
