"""Chapter *autocast*: float32 parameters and inputs, computed in half precision where torch.autocast says so."""

from collections.abc import Iterator

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Match, Observation
from attnbench.checks.requirement import check, draws_dropout


@check(when=lambda case: case.autocast and not draws_dropout(case))
def autocast_parity(candidate: Candidate) -> Iterator[Observation]:
    """Under autocast the output has autocast's dtype, gradients have their own, and both are right."""
    yield Match(quantities={"output": candidate.outputs["output"]} | candidate.gradients)
    # Whether a softmax is left in float32 is the implementation's affair, and shows in the dtype of its weights.
    yield Match(quantities={k: v for k, v in candidate.outputs.items() if k != "output"}, any_dtype=True)
