"""Chapter *exact*: on inputs where nothing can be rounded, every bit is attention's; nothing is allowed."""

from collections.abc import Iterator

from attnbench.checks.claims import Claim, Exact
from attnbench.checks.requirement import check
from attnbench.subject import Subject


@check(when=lambda case: case.problem.regime == "uniform")
def exact_uniform_mean(subject: Subject) -> Iterator[Claim]:
    """Equal logits over a power of two of visible keys give the exact mean of their values."""
    yield Exact(quantities={"output": subject.outputs["output"]})


@check(when=lambda case: case.problem.regime == "selection")
def exact_selection(subject: Subject) -> Iterator[Claim]:
    """A query that sees a single key gets exactly that key's value, in every head."""
    yield Exact(quantities={"output": subject.outputs["output"]})


@check(when=lambda case: case.problem.regime == "zeroleak")
def exact_zero_leak(subject: Subject) -> Iterator[Claim]:
    """Visible values of zero give exactly zero, however large the hidden ones are."""
    yield Exact(quantities={"output": subject.outputs["output"]})
