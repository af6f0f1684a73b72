"""Chapter *forward*: the output is attention's."""

from collections.abc import Iterator

from attnbench.checks.claims import Claim, Match
from attnbench.checks.requirement import check, eager
from attnbench.subject import Subject


@check(when=eager)
def forward_parity(subject: Subject) -> Iterator[Claim]:
    """The output equals the oracle's within the error budget."""
    yield Match(quantities={"output": subject.outputs["output"]})
