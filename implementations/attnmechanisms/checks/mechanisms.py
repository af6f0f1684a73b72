"""Chapter *mechanisms*: checks of the elementary attention mechanisms.

The checks concern attention weights, padding, the order of tokens, the independence of sequences,
and gradients.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import Case
from attnbench.checks.observations import Agree, Equal, Holds, Match, Observation
from attnbench.checks.requirement import check, is_eager
from attnbench.checks.runs import compare_runs, compute_gradient_alone
from attnbench.checks.slopes import compare_with_slope
from attnbench.interface import Inputs
from attnbench.oracle.error_budget import allowed_row_sum_error
from attnbench.records.value_facts import phrase

# FURTHER_TOKENS: number of padded tokens that a check appends.
# POISON: value that a check writes into every feature of a padded token. The value is finite, but
# much larger than the tokens in all input regimes except ``huge``.
FURTHER_TOKENS, POISON = 3, 30.0
# Input regimes in which attention weights are too peaked for accurate finite differences.
SHARP = ("peaked", "huge")


@check(when=is_eager)
def shares_parity(candidate: Candidate) -> Iterator[Observation]:
    """The attention weights of a mechanism equal the oracle's within the error budget."""
    yield Match(quantities={"weights": _get_weights(candidate)})


@check(when=is_eager)
def shares_sum_to_one(candidate: Candidate) -> Iterator[Observation]:
    """Attention weights are ≥ 0, 0 for hidden tokens, and sum to 1 per row (0 if fully masked)."""
    visible = candidate.operator.visible(candidate.case, candidate.inputs)[:, 0]
    weights = _get_weights(candidate).detach()
    weights = weights.reshape(visible.shape)  # (batch, queries, keys); pooling has one query
    there = weights[~visible]
    yield Equal(value=there, expected=torch.zeros_like(there), quantity="weights", how="of hidden tokens")
    smallest = float(weights.amin())
    yield Holds(holds=smallest >= 0, violation=f"attention weights must be at least 0, got {smallest:g}")
    off = float((weights.double().sum(dim=-1) - visible.any(dim=-1).double()).abs().max())
    allowed = allowed_row_sum_error(candidate.precision, weights.shape[-1])
    yield Holds(
        holds=off <= allowed,
        violation=f"a row of weights must sum to 1 (0 if fully masked), error {off:.3g}, allowed {allowed:.3g}",
        measured=off, allowed=allowed,
    )  # fmt: skip


@check(when=lambda case: is_eager(case) and case.problem.padding_mask is not None)
def padded_tokens_cannot_leak(candidate: Candidate) -> Iterator[Observation]:
    """Changing padded tokens changes no bit of the output of real tokens or of a pooled sequence."""
    tokens, hide = (candidate.inputs.tensors[name].detach() for name in ("tokens", "key_padding_mask"))
    poisoned = torch.where(hide[..., None], torch.full_like(tokens, POISON), tokens)
    before = candidate.run()["output"].detach().clone()
    with candidate.overwrite({"tokens": poisoned}):
        after = candidate.run()["output"].detach()
    real = slice(None) if _pools(candidate) else ~hide
    how = "of real tokens (after padded tokens changed)"
    yield Equal(value=after[real], expected=before[real], quantity="output", how=how)


@check(when=is_eager)
def further_padding_changes_nothing(candidate: Candidate) -> Iterator[Observation]:
    """Appended padding changes neither the outputs nor a later call without appended padding."""
    case, inputs, length = candidate.case, candidate.inputs, candidate.case.problem.length
    tokens = inputs.tensors["tokens"].detach()
    hide = inputs.tensors.get("key_padding_mask", tokens.new_zeros(tokens.shape[:2], dtype=torch.bool))
    tensors = {
        "tokens": torch.nn.functional.pad(tokens, (0, 0, 0, FURTHER_TOKENS), value=POISON),
        "key_padding_mask": torch.nn.functional.pad(hide, (0, FURTHER_TOKENS), value=True),
    }
    if "attn_mask" in inputs.tensors:
        tensors["attn_mask"] = torch.nn.functional.pad(inputs.tensors["attn_mask"], (0, FURTHER_TOKENS) * 2)
    mask = case.problem.mask
    if not case.problem.padding_mask:
        mask = "pad" if mask == "none" else f"{mask}+pad"
    before = _get_weights(candidate).detach().clone()
    longer = case.with_problem(length=length + FURTHER_TOKENS, mask=mask)
    outputs = candidate.run_on(longer, _track_gradients(inputs, tensors))
    if not _pools(candidate):
        outputs = {name: value[:, :length] for name, value in outputs.items()}
    outputs["weights"] = outputs["weights"][..., :length]
    yield from compare_runs(
        outputs,
        candidate.outputs,
        f"with {FURTHER_TOKENS} additional padded tokens (compared with no additional tokens)",
    )
    again = candidate.run()["weights"].detach()
    yield Agree(
        value=again,
        expected=before,
        quantity="weights",
        how="of a call after a call with additional padded tokens (compared with the first call)",
    )


@check(when=lambda case: is_eager(case) and not case.problem.ordered and case.problem.length > 1)
def order_of_tokens_is_free(candidate: Candidate) -> Iterator[Observation]:
    """Permuting the tokens permutes outputs and weights in the same way; a pooled vector stays the same."""
    length = candidate.case.problem.length
    tokens = candidate.inputs.tensors["tokens"]
    order = torch.tensor([*range(1, length, 2), *range(0, length, 2)], device=tokens.device)
    outputs = candidate.run_on(candidate.case, _select(candidate.inputs, order, axis=1))
    expected = {name: value.detach() for name, value in candidate.outputs.items()}
    if not _pools(candidate):
        expected = {name: value[:, order] for name, value in expected.items()}
    expected["weights"] = expected["weights"][..., order]
    yield from compare_runs(outputs, expected, "with permuted tokens (compared with the original order)")


@check(when=lambda case: is_eager(case) and case.problem.sequences > 1)
def sequences_do_not_mix(candidate: Candidate) -> Iterator[Observation]:
    """A sequence gives the same outputs in a batch as alone."""
    tokens = candidate.inputs.tensors["tokens"]
    last = torch.tensor([candidate.case.problem.sequences - 1], device=tokens.device)
    outputs = candidate.run_on(candidate.case.with_problem(sequences=1), _select(candidate.inputs, last, axis=0))
    expected = {name: value.detach()[last] for name, value in candidate.outputs.items()}
    yield from compare_runs(
        outputs, expected, "of the last sequence alone (compared with the same sequence in the batch)"
    )


@check(when=lambda case: is_eager(case) and case.problem.sequences > 1)
def one_sequence_may_stand_for_all(candidate: Candidate) -> Iterator[Observation]:
    """One sequence, expanded over the batch with a stride of 0, gives the same outputs as a batch of real copies.

    Each sequence of the batch keeps its own padding mask.
    """
    first = candidate.inputs.tensors["tokens"].detach()[:1].expand_as(candidate.inputs.tensors["tokens"])
    found, expected = (
        candidate.run_on(candidate.case, _track_gradients(candidate.inputs, {"tokens": tokens}))
        for tokens in (first, first.clone())
    )
    yield from compare_runs(
        found,
        {name: value.detach() for name, value in expected.items()},
        "of one sequence expanded with a stride of 0 (compared with real copies)",
    )


def _has_accurate_differences(case: Case) -> bool:
    """Whether finite differences are accurate enough to check the gradients in a case.

    Finite differences need float64, a call mode that computes gradients, and attention weights that
    are not too peaked.
    """
    return is_eager(case) and case.tracks_inputs and case.dtype == "float64" and case.problem.regime not in SHARP


@check(when=_has_accurate_differences)
def gradients_are_slopes(candidate: Candidate) -> Iterator[Observation]:
    """Gradients of tokens and parameters equal finite differences, also if the loss ignores the attention weights."""
    yield from _compare_slopes(candidate, None, candidate.operator.outputs)
    yield from _compare_slopes(candidate, "of a loss that ignores the attention weights", ("output",))


def _compare_slopes(candidate: Candidate, how: str | None, outputs: Sequence[str]) -> Iterator[Observation]:
    """Compare the gradients of a loss with finite differences.

    The loss depends only on the outputs named in ``outputs``. ``how`` says which loss it is.
    """

    def loss() -> Tensor:
        return candidate.compute_loss({name: value for name, value in candidate.run().items() if name in outputs})

    leaves = candidate.collect_leaves() | (candidate.parameters() if candidate.case.tracks_parameters else {})
    found = torch.autograd.grad(loss(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
        yield compare_with_slope(
            gradient, leaf, loss, f"grad.{name}", how=how,
            precision=candidate.precision,
            weights={output: candidate.inputs.cotangents[output] for output in outputs},
        )  # fmt: skip


# A case whose only sequence is fully padded is left out, because the outputs of such a sequence do
# not depend on the parameters.
@check(
    when=lambda case: (
        is_eager(case)
        and case.tracks_parameters
        and case.problem.regime not in SHARP
        and (case.problem.padding_mask != "padempty" or case.problem.sequences > 1)
    )
)
def parameters_need_no_company(candidate: Candidate) -> Iterator[Observation]:
    """The gradient of a parameter is the same when no other tensor requires a gradient."""
    own = candidate.parameters()
    if not own:
        return
    together = torch.autograd.grad(
        candidate.compute_loss(candidate.run()), list(own.values()), allow_unused=True, materialize_grads=True
    )
    for (name, parameter), expected in zip(own.items(), together, strict=True):
        yield Agree(
            value=compute_gradient_alone(candidate, parameter),
            expected=expected,
            quantity=f"grad.{name}",
            how="computed alone (compared with all gradients computed together)",
        )


def _get_weights(candidate: Candidate) -> Tensor:
    """Return the attention weights of the first call.

    Raises: Malformed if the call returned no weights.
    """
    if "weights" not in candidate.outputs:
        raise Malformed(phrase("no_weights"))
    return candidate.outputs["weights"]


def _pools(candidate: Candidate) -> bool:
    """Whether the mechanism pools each sequence to one vector."""
    return candidate.outputs["output"].dim() == candidate.inputs.tensors["tokens"].dim() - 1


def _select(inputs: Inputs, index: Tensor, *, axis: int) -> Inputs:
    """Return inputs with selected sequences (axis 0) or selected tokens (axis 1).

    ``index`` contains the indices of the selected sequences or tokens. attn_mask is not changed.
    """
    names = [name for name in inputs.tensors if name != "attn_mask"]
    return _track_gradients(inputs, {name: inputs.tensors[name].detach().index_select(axis, index) for name in names})


def _track_gradients(inputs: Inputs, tensors: dict[str, Tensor]) -> Inputs:
    """Return a copy of ``inputs`` in which ``tensors`` replace the tensors of the same names.

    The copy has no cotangents. The floating-point tensors in ``tensors`` require gradients if the
    tensor ``tokens`` in ``inputs`` does.
    """
    like = inputs.tensors["tokens"].requires_grad
    tracked = {name: t.requires_grad_(like and t.is_floating_point()) for name, t in tensors.items()}
    return replace(inputs, tensors=dict(inputs.tensors) | tracked, cotangents={})
