"""What runs of one implementation come to: two of them say the same, or one raises."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.checks.observations import Agree, Equal, Observation
from attnbench.interface import Refusal

__all__ = ["agree", "attempted", "gradient_alone", "same"]

Result = TypeVar("Result")
# Characters of an exception's message that a finding repeats.
MESSAGE = 200


def agree(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], how: str) -> Iterator[Observation]:
    """Every quantity of both runs agrees; ``how`` says of which run the first one is, against which other."""
    for name in [name for name in found if name in expected]:
        yield Agree(value=found[name].detach(), expected=expected[name].detach(), quantity=name, what=f"{name} {how}")


def same(candidate: Candidate, value: Tensor, expected: Tensor, how: str) -> Observation:
    """The output is the same bits; or, where the implementation declares otherwise, it agrees."""
    value, expected, what = value.detach(), expected.detach(), f"output {how}"
    if candidate.implementation.policies.deterministic:
        return Equal(value=value, expected=expected, what=what)
    return Agree(value=value, expected=expected, quantity="output", what=what)


def gradient_alone(candidate: Candidate, tensor: Tensor) -> Tensor:
    """Gradient of the loss by an input or a parameter, while nothing else takes one."""
    tracked = [
        one for one in (*candidate.inputs.tensors.values(), *candidate.parameters().values()) if one.requires_grad
    ]
    try:
        for one in tracked:
            one.requires_grad_(one is tensor)
        (found,) = torch.autograd.grad(candidate.loss(candidate.run()), [tensor])
    finally:
        for one in tracked:
            one.requires_grad_()
    return found


def attempted(step: Callable[[], Result]) -> tuple[Result | None, str]:
    """What a step gave, and what it raised, in one line: one of the two. A refusal goes its way."""
    try:
        return step(), ""
    except (Refusal, Malformed):
        raise
    except Exception as error:  # noqa: BLE001  # an implementation may raise anything; what it raised is the finding
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:MESSAGE]}"
