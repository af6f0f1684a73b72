"""Chapter *autocast*: float32 parameters and inputs under torch.autocast."""

from collections.abc import Iterator

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Match, Observation
from attnbench.checks.requirement import check, draws_dropout


@check(when=lambda case: case.autocast and not draws_dropout(case))
def autocast_parity(candidate: Candidate) -> Iterator[Observation]:
    """Under autocast, outputs and gradients equal the oracle's; output has autocast's dtype, gradients are float32."""
    gradients = candidate.gradients if candidate.case.differentiates else {}
    yield Match(quantities={"output": candidate.outputs["output"]} | gradients)
    # An implementation may compute its softmax in float32 and return attention weights in float32,
    # so the check accepts any dtype of the weights.
    yield Match(quantities={k: v for k, v in candidate.outputs.items() if k != "output"}, any_dtype=True)
