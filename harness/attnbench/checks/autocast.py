"""Chapter *autocast*: float32 parameters and inputs, computed in half precision where torch.autocast says so."""

from collections.abc import Iterator

from attnbench.checks.claims import Claim, Match
from attnbench.checks.requirement import check, draws_dropout
from attnbench.subject import Subject


@check(when=lambda case: case.autocast and not draws_dropout(case))
def autocast_parity(subject: Subject) -> Iterator[Claim]:
    """Under autocast the output has autocast's dtype, gradients have their own, and both are right."""
    yield Match(quantities={"output": subject.outputs["output"]} | subject.gradients)
    # Whether a softmax is left in float32 is the implementation's affair, and shows in the dtype of its weights.
    yield Match(quantities={k: v for k, v in subject.outputs.items() if k != "output"}, any_dtype=True)
