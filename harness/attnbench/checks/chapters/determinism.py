"""Chapter *determinism*: repetitions of the same call."""

from collections.abc import Iterator

from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Agree, Equal, Observation
from attnbench.checks.requirement import check, is_eager

# Number of passes. A race condition that shows in one of ten calls is seen with a probability of 199 in 200.
REPETITIONS = 50


@check(when=is_eager)
def repeats_itself(candidate: Candidate) -> Iterator[Observation]:
    """The same call gives the same bits, or agrees within the error budget if declared not deterministic."""
    first, second = candidate.run()["output"].detach(), candidate.run()["output"].detach()
    yield _compare_repetition(candidate, second, first, "output", "of a second call (compared with the first call)")


@check(when=lambda case: is_eager(case) and case.mode == "train" and case.problem.regime == "plain")
def repeats_many_times(candidate: Candidate) -> Iterator[Observation]:
    """Fifty forward and backward passes give the same bits, or agree if declared not deterministic."""
    first = _run_pass(candidate)
    strays = dict(first)
    for _ in range(REPETITIONS - 1):
        strays |= {name: value for name, value in _run_pass(candidate).items() if not value.equal(first[name])}
    yield from (
        _compare_repetition(
            candidate, strays[name], first[name], name, "of a later pass (compared with the first pass)"
        )
        for name in first
    )


def _run_pass(candidate: Candidate) -> dict[str, Tensor]:
    outputs = candidate.run()
    return {name: value.detach() for name, value in (outputs | candidate.compute_gradients(outputs)).items()}


def _compare_repetition(candidate: Candidate, value: Tensor, expected: Tensor, quantity: str, how: str) -> Observation:
    what = f"{quantity} {how}"
    if candidate.implementation.policies.deterministic:
        return Equal(value=value, expected=expected, what=what)
    return Agree(value=value, expected=expected, quantity=quantity, what=what)
