"""Chapter *determinism*: repetitions of the same call."""

from collections.abc import Iterator

from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Observation
from attnbench.checks.requirement import check, is_eager
from attnbench.checks.runs import compare_bitwise
from attnbench.records.value_facts import phrase

# Number of forward and backward passes that ``repeats_many_times`` compares. A race condition that
# changes one of ten passes is detected with a probability of 199 in 200.
REPETITIONS = 50


@check(when=is_eager)
def repeats_itself(candidate: Candidate) -> Iterator[Observation]:
    """Two equal calls give the same bits or, if the policies let bits differ, agree within twice the error budget."""
    first, second = candidate.run()["output"].detach(), candidate.run()["output"].detach()
    yield compare_bitwise(candidate, second, first, phrase("second_call"))


@check(when=lambda case: is_eager(case) and case.mode == "train" and case.problem.regime == "plain")
def repeats_many_times(candidate: Candidate) -> Iterator[Observation]:
    """Fifty forward and backward passes give the same bits or, if the policies let bits differ, agree."""
    first = _run_pass(candidate)
    strays = dict(first)
    for _ in range(REPETITIONS - 1):
        strays |= {name: value for name, value in _run_pass(candidate).items() if not value.equal(first[name])}
    yield from (compare_bitwise(candidate, strays[name], first[name], phrase("later_pass"), name) for name in first)


def _run_pass(candidate: Candidate) -> dict[str, Tensor]:
    outputs = candidate.run()
    return {name: value.detach() for name, value in (outputs | candidate.compute_gradients(outputs)).items()}
