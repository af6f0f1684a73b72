"""Chapter *forward*: the output of a forward pass."""

from collections.abc import Iterator

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Match, Observation
from attnbench.checks.requirement import check, is_eager


@check(when=is_eager)
def forward_parity(candidate: Candidate) -> Iterator[Observation]:
    """The output equals the oracle's within the error budget."""
    yield Match(quantities={"output": candidate.outputs["output"]})
