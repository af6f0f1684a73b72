"""Chapter *mechanisms*: rows of weights are shares, and padding, order and neighbours change nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import Case
from attnbench.checks.observations import Agree, Equal, Holds, Match, Observation
from attnbench.checks.requirement import check, eager
from attnbench.checks.runs import agree, gradient_alone
from attnbench.checks.slopes import is_slope
from attnbench.interface import Inputs
from attnbench.oracle.error_budget import allowed_of_a_sum

# Tokens added behind the last one, and what they hold: far outside the data, and finite.
FURTHER_TOKENS, POISON = 3, 30.0
# Regimes whose rows are too sharp for differences to be compared with.
SHARP = ("peaked", "huge")


@check(when=eager)
def shares_parity(candidate: Candidate) -> Iterator[Observation]:
    """The weights of a mechanism equal the oracle's within the error budget."""
    yield Match(quantities={"weights": _weights(candidate)})


@check(when=eager)
def shares_sum_to_one(candidate: Candidate) -> Iterator[Observation]:
    """A row of shares sums to one, or to zero where it sees nothing; none is negative, and what is hidden has 0."""
    visible = candidate.operator.visible(candidate.case, candidate.inputs)[:, 0]
    weights = _weights(candidate).detach()
    weights = weights.reshape(visible.shape)  # (batch, queries, keys); pooling has one query
    there = weights[~visible]
    yield Equal(value=there, expected=torch.zeros_like(there), what="weights of hidden tokens")
    smallest = float(weights.amin())
    yield Holds(holds=smallest >= 0, what=f"the smallest weight is {smallest:g}")
    off = float((weights.double().sum(dim=-1) - visible.any(dim=-1).double()).abs().max())
    allowed = allowed_of_a_sum(candidate.implementation.policies.precision(candidate.case.dtype), weights.shape[-1])
    yield Holds(
        holds=off <= allowed, what=f"a sum of weights is off by {off:.3g}; allowed {allowed:.3g}",
        measured=off, allowed=allowed,
    )  # fmt: skip


@check(when=lambda case: eager(case) and case.problem.padding_mask is not None)
def padded_tokens_cannot_leak(candidate: Candidate) -> Iterator[Observation]:
    """Values of padded tokens change no bit of what real tokens, or a pooled sequence, get."""
    tokens, hide = (candidate.inputs.tensors[name].detach() for name in ("tokens", "key_padding_mask"))
    poisoned = torch.where(hide[..., None], torch.full_like(tokens, POISON), tokens)
    before = candidate.run()["output"].detach().clone()
    with candidate.overwritten({"tokens": poisoned}):
        after = candidate.run()["output"].detach()
    real = slice(None) if _pools(candidate) else ~hide
    yield Equal(value=after[real], expected=before[real], what="output of real tokens after padded tokens changed")


@check(when=eager)
def further_padding_changes_nothing(candidate: Candidate) -> Iterator[Observation]:
    """Further tokens that the padding mask hides change nothing, nor what a shorter call gives afterwards."""
    case, inputs, length = candidate.case, candidate.inputs, candidate.case.problem.length
    tokens = inputs.tensors["tokens"].detach()
    hide = inputs.tensors.get("key_padding_mask", torch.zeros(tokens.shape[:2], dtype=torch.bool))
    tensors = {
        "tokens": torch.nn.functional.pad(tokens, (0, 0, 0, FURTHER_TOKENS), value=POISON),
        "key_padding_mask": torch.nn.functional.pad(hide, (0, FURTHER_TOKENS), value=True),
    }
    if "attn_mask" in inputs.tensors:
        tensors["attn_mask"] = torch.nn.functional.pad(inputs.tensors["attn_mask"], (0, FURTHER_TOKENS) * 2)
    mask = case.problem.mask
    if not case.problem.padding_mask:
        mask = "pad" if mask == "none" else f"{mask}+pad"
    before = _weights(candidate).detach().clone()
    longer = case.with_problem(length=length + FURTHER_TOKENS, mask=mask)
    outputs = candidate.on(longer, _tracked(inputs, tensors))
    if not _pools(candidate):
        outputs = {name: value[:, :length] for name, value in outputs.items()}
    outputs["weights"] = outputs["weights"][..., :length]
    yield from agree(outputs, candidate.outputs, f"beside {FURTHER_TOKENS} further padded tokens, against that without")
    again = candidate.run()["weights"].detach()
    yield Agree(value=again, expected=before, quantity="weights", what="weights after the longer call, against before")


@check(when=lambda case: eager(case) and not case.problem.ordered and case.problem.length > 1)
def order_of_tokens_is_free(candidate: Candidate) -> Iterator[Observation]:
    """Tokens in another order give outputs and weights in that order; a pooled vector stays as it is."""
    length = candidate.case.problem.length
    order = torch.tensor([*range(1, length, 2), *range(0, length, 2)])
    outputs = candidate.on(candidate.case, _picked(candidate.inputs, order, axis=1))
    expected = {name: value.detach() for name, value in candidate.outputs.items()}
    if not _pools(candidate):
        expected = {name: value[:, order] for name, value in expected.items()}
    expected["weights"] = expected["weights"][..., order]
    yield from agree(outputs, expected, "of tokens in another order, against that in order")


@check(when=lambda case: eager(case) and case.problem.sequences > 1)
def sequences_do_not_mix(candidate: Candidate) -> Iterator[Observation]:
    """A sequence of a batch gives what it gives alone."""
    last = torch.tensor([candidate.case.problem.sequences - 1])
    outputs = candidate.on(candidate.case.with_problem(sequences=1), _picked(candidate.inputs, last, axis=0))
    expected = {name: value.detach()[last] for name, value in candidate.outputs.items()}
    yield from agree(outputs, expected, "of the last sequence alone, against that in the batch")


@check(when=lambda case: eager(case) and case.problem.sequences > 1)
def one_sequence_may_stand_for_all(candidate: Candidate) -> Iterator[Observation]:
    """Tokens of one sequence, repeated by a stride of 0 beside the masks of all, give what their copies give."""
    first = candidate.inputs.tensors["tokens"].detach()[:1].expand_as(candidate.inputs.tensors["tokens"])
    found, expected = (
        candidate.on(candidate.case, _tracked(candidate.inputs, {"tokens": tokens}))
        for tokens in (first, first.clone())
    )
    yield from agree(
        found, {name: value.detach() for name, value in expected.items()}, "of a stride of 0, against copies'"
    )


def _has_slopes(case: Case) -> bool:
    """Whether differences of the loss are exact enough to be compared with: not where peaked rows bend it sharply."""
    return eager(case) and case.tracks_inputs and case.dtype == "float64" and case.problem.regime not in SHARP


@check(when=_has_slopes)
def gradients_are_slopes(candidate: Candidate) -> Iterator[Observation]:
    """Gradients by the tokens and by every parameter are the slopes of the loss, and of one that hears no weights."""
    for what, heard in (("the loss", candidate.operator.outputs), ("a loss of the output alone", ("output",))):
        yield from _slopes(candidate, what, heard)


def _slopes(candidate: Candidate, what: str, heard: Sequence[str]) -> Iterator[Observation]:
    """Gradients of the loss over some outputs against what differences of it show."""

    def loss() -> Tensor:
        return candidate.loss({name: value for name, value in candidate.run().items() if name in heard})

    leaves = candidate.leaves() | (candidate.parameters() if candidate.case.tracks_parameters else {})
    found = torch.autograd.grad(loss(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
        yield is_slope(gradient, leaf, loss, f"the gradient of {what} by {name}")


# Of a sequence without any token, if there is no other, nothing depends on a parameter.
@check(
    when=lambda case: (
        eager(case)
        and case.tracks_parameters
        and case.problem.regime not in SHARP
        and (case.problem.padding_mask != "padempty" or case.problem.sequences > 1)
    )
)
def parameters_need_no_company(candidate: Candidate) -> Iterator[Observation]:
    """The gradient of a parameter is the same where nothing else takes one."""
    own = candidate.parameters()
    if not own:
        return
    together = torch.autograd.grad(
        candidate.loss(candidate.run()), list(own.values()), allow_unused=True, materialize_grads=True
    )
    for (name, parameter), expected in zip(own.items(), together, strict=True):
        yield Agree(
            value=gradient_alone(candidate, parameter),
            expected=expected,
            quantity=f"grad.{name}",
            what=f"grad.{name} alone, against among all",
        )


def _weights(candidate: Candidate) -> Tensor:
    """Weights of the first call.

    Raises: Malformed where there are none.
    """
    if "weights" not in candidate.outputs:
        raise Malformed("the call must return (output, weights), got None for the weights")
    return candidate.outputs["weights"]


def _pools(candidate: Candidate) -> bool:
    """Whether a sequence gives one vector."""
    return candidate.outputs["output"].dim() == candidate.inputs.tensors["tokens"].dim() - 1


def _picked(inputs: Inputs, index: Tensor, *, axis: int) -> Inputs:
    """Inputs with some sequences or tokens, in this order; a mask that all sequences share stays as it is."""
    names = [name for name in inputs.tensors if name != "attn_mask"]
    return _tracked(inputs, {name: inputs.tensors[name].detach().index_select(axis, index) for name in names})


def _tracked(inputs: Inputs, tensors: dict[str, Tensor]) -> Inputs:
    """Inputs with other tensors, which take gradients where those before did."""
    like = inputs.tensors["tokens"].requires_grad
    tracked = {name: t.requires_grad_(like and t.is_floating_point()) for name, t in tensors.items()}
    return replace(inputs, tensors=dict(inputs.tensors) | tracked, cotangents={})
