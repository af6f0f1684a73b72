"""Chapter *gradients*: backward is forward's derivative."""

from collections.abc import Iterator

from attnbench.cases import Case
from attnbench.checks.claims import Claim, Match
from attnbench.checks.requirement import check, draws_dropout
from attnbench.subject import Subject

_MASKS = ("grad.attn_mask", "grad.key_padding_mask")


def _differentiable(case: Case) -> bool:
    return case.mode != "inference" and not draws_dropout(case)


@check(when=_differentiable)
def input_gradients(subject: Subject) -> Iterator[Claim]:
    """Gradients of query, key and value equal the oracle's within the error budget."""
    wanted = ("grad.query", "grad.key", "grad.value")
    yield Match(quantities={name: subject.gradients[name] for name in wanted if name in subject.gradients})


@check(when=_differentiable)
def parameter_gradients(subject: Subject) -> Iterator[Claim]:
    """Gradients of every parameter, in the reference's layout, equal the oracle's within the error budget."""
    wanted = (f"grad.{name}" for name in subject.inputs.parameters)
    yield Match(quantities={name: subject.gradients[name] for name in wanted})


@check(when=lambda case: _differentiable(case) and "float" in case.problem.mask)
def mask_gradients(subject: Subject) -> Iterator[Claim]:
    """Gradients of additive masks equal the oracle's within the error budget."""
    yield Match(quantities={name: subject.gradients[name] for name in _MASKS if name in subject.gradients})
