"""Chapter *forward*: the output is attention's."""

from collections.abc import Iterator

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Match, Observation
from attnbench.checks.requirement import check, eager


@check(when=eager)
def forward_parity(candidate: Candidate) -> Iterator[Observation]:
    """The output equals the oracle's within the error budget."""
    yield Match(quantities={"output": candidate.outputs["output"]})
