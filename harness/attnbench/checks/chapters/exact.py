"""Chapter *exact*: on inputs where nothing can be rounded, every bit is attention's; nothing is allowed."""

from collections.abc import Iterator

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Exact, Observation
from attnbench.checks.requirement import check


@check(when=lambda case: case.problem.regime == "uniform")
def exact_uniform_mean(candidate: Candidate) -> Iterator[Observation]:
    """Equal logits over a power of two of visible keys give the exact mean of their values."""
    yield Exact(quantities={"output": candidate.outputs["output"]})


@check(when=lambda case: case.problem.regime == "selection")
def exact_selection(candidate: Candidate) -> Iterator[Observation]:
    """A query that sees a single key gets exactly that key's value, in every head."""
    yield Exact(quantities={"output": candidate.outputs["output"]})


@check(when=lambda case: case.problem.regime == "zeroleak")
def exact_zero_leak(candidate: Candidate) -> Iterator[Observation]:
    """Visible values of zero give exactly zero, however large the hidden ones are."""
    yield Exact(quantities={"output": candidate.outputs["output"]})
