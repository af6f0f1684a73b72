"""Chapter *exact*: on inputs where no rounding can occur, every bit of the output must be right.

An implementation may compute attention in blocks of keys and join the blocks by their logsumexp. A logsumexp is no
whole number, so a join of partial means is not exact. The error of the join is allowed, and no other error.
"""

from collections.abc import Iterator

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Exact, Observation
from attnbench.checks.requirement import check


@check(when=lambda case: case.problem.regime == "uniform")
def exact_uniform_mean(candidate: Candidate) -> Iterator[Observation]:
    """With equal logits and 2ⁿ visible keys, output is the mean of their values; only a join of blocks may round."""
    yield Exact(quantities={"output": candidate.outputs["output"]}, mean_over=candidate.case.problem.columns)


@check(when=lambda case: case.problem.regime == "selection")
def exact_selection(candidate: Candidate) -> Iterator[Observation]:
    """A query that sees a single key gets exactly that key's value, in every head."""
    yield Exact(quantities={"output": candidate.outputs["output"]})


@check(when=lambda case: case.problem.regime == "zeroleak")
def exact_zero_leak(candidate: Candidate) -> Iterator[Observation]:
    """If all visible values are zero, the output is exactly zero, however large the hidden values are."""
    yield Exact(quantities={"output": candidate.outputs["output"]})


@check(when=lambda case: case.problem.regime == "overflow")
def exact_large_logits(candidate: Candidate) -> Iterator[Observation]:
    """If one logit of a row is 2¹⁵ and the others are 0, the output is exactly the value of that key."""
    yield Exact(quantities={"output": candidate.outputs["output"]})
