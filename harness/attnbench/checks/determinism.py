"""Chapter *determinism*: the same call again."""

from collections.abc import Iterator

from torch import Tensor

from attnbench.checks.claims import Agree, Claim, Equal
from attnbench.checks.requirement import check, eager
from attnbench.subject import Subject

# Repetitions, enough to see a race that shows once in ten calls (by chance missed once in 200 times).
REPETITIONS = 50


@check(when=eager)
def repeats_itself(subject: Subject) -> Iterator[Claim]:
    """The same call gives the same bits; or, where that is declared otherwise, agrees within the error budget."""
    first, second = subject.run()["output"].detach(), subject.run()["output"].detach()
    yield _again(subject, second, first, "output", "of the same call again")


@check(when=lambda case: eager(case) and case.mode == "train" and case.problem.regime == "plain")
def repeats_many_times(subject: Subject) -> Iterator[Claim]:
    """Fifty forward and backward passes give the same bits, or agree where that is declared otherwise."""
    first = _pass(subject)
    strays = dict(first)
    for _ in range(REPETITIONS - 1):
        strays |= {name: value for name, value in _pass(subject).items() if not value.equal(first[name])}
    yield from (_again(subject, strays[name], first[name], name, "of one of fifty passes") for name in first)


def _pass(subject: Subject) -> dict[str, Tensor]:
    outputs = subject.run()
    return {name: value.detach() for name, value in (outputs | subject.gradients_of(outputs)).items()}


def _again(subject: Subject, value: Tensor, expected: Tensor, quantity: str, how: str) -> Claim:
    what = f"{quantity} {how}"
    if subject.implementation.policies.deterministic:
        return Equal(value=value, expected=expected, what=what)
    return Agree(value=value, expected=expected, quantity=quantity, what=what)
