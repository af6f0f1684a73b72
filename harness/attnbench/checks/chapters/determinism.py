"""Chapter *determinism*: the same call again."""

from collections.abc import Iterator

from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Agree, Equal, Observation
from attnbench.checks.requirement import check, eager

# Repetitions, enough to see a race that shows once in ten calls (by chance missed once in 200 times).
REPETITIONS = 50


@check(when=eager)
def repeats_itself(candidate: Candidate) -> Iterator[Observation]:
    """The same call gives the same bits; or, where that is declared otherwise, agrees within the error budget."""
    first, second = candidate.run()["output"].detach(), candidate.run()["output"].detach()
    yield _again(candidate, second, first, "output", "of the same call again")


@check(when=lambda case: eager(case) and case.mode == "train" and case.problem.regime == "plain")
def repeats_many_times(candidate: Candidate) -> Iterator[Observation]:
    """Fifty forward and backward passes give the same bits, or agree where that is declared otherwise."""
    first = _pass(candidate)
    strays = dict(first)
    for _ in range(REPETITIONS - 1):
        strays |= {name: value for name, value in _pass(candidate).items() if not value.equal(first[name])}
    yield from (_again(candidate, strays[name], first[name], name, "of one of fifty passes") for name in first)


def _pass(candidate: Candidate) -> dict[str, Tensor]:
    outputs = candidate.run()
    return {name: value.detach() for name, value in (outputs | candidate.gradients_of(outputs)).items()}


def _again(candidate: Candidate, value: Tensor, expected: Tensor, quantity: str, how: str) -> Observation:
    what = f"{quantity} {how}"
    if candidate.implementation.policies.deterministic:
        return Equal(value=value, expected=expected, what=what)
    return Agree(value=value, expected=expected, quantity=quantity, what=what)
