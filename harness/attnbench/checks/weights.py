"""Chapter *weights*: what need_weights returns."""

from collections.abc import Iterator

import torch

from attnbench.checks.claims import Claim, Equal, Holds, Match
from attnbench.checks.requirement import check, draws_dropout
from attnbench.subject import Subject


@check()
def weights_only_on_request(subject: Subject) -> Iterator[Claim]:
    """Weights are returned if, and only if, need_weights asks for them."""
    asked, given = subject.case.problem.need_weights, "weights" in subject.outputs
    yield Holds(
        holds=asked == given, what=f"need_weights={asked} returned {'a tensor' if given else 'None'} as weights"
    )


@check(when=lambda case: case.problem.need_weights and not draws_dropout(case))
def weights_parity(subject: Subject) -> Iterator[Claim]:
    """The returned weights, of each head or averaged, equal the oracle's within the error budget."""
    if "weights" in subject.outputs:
        yield Match(quantities={"weights": subject.outputs["weights"]})


@check(when=lambda case: case.problem.need_weights and case.problem.padding_mask in ("pad", "padempty"))
def weights_of_padding_are_zero(subject: Subject) -> Iterator[Claim]:
    """The weight of every padded key is exactly zero."""
    if "weights" not in subject.outputs:
        return
    padded = subject.inputs.tensors["key_padding_mask"]
    weights = subject.outputs["weights"][..., : padded.shape[-1]]
    rows = padded if padded.dim() == 1 else padded.reshape(padded.shape[0], *[1] * (weights.dim() - 2), -1)
    hidden = weights[rows.expand_as(weights)]
    yield Equal(value=hidden, expected=torch.zeros_like(hidden), what="weights of padded keys")
