"""Chapter *gradients*: the backward pass computes the derivative of the forward pass."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Agree, Equal, Match, Observation
from attnbench.checks.requirement import check, get_case_transforms, has_tokens, is_eager
from attnbench.checks.runs import compute_gradient_alone
from attnbench.checks.slopes import compare_with_slope
from attnbench.interface import Refusal
from attnbench.kernel.differentiable import can_have_gradient
from attnbench.records.value_facts import Phrase, Rows, phrase


def _tracks_inputs(case: Case) -> bool:
    """Whether a case is eager and its inputs require gradients."""
    return case.tracks_inputs and is_eager(case)


@check(when=_tracks_inputs)
def input_gradients(candidate: Candidate) -> Iterator[Observation]:
    """Gradients with respect to the inputs, except masks, equal the oracle's within the error budget."""
    masks = candidate.case.problem.additive_masks
    names = (f"grad.{name}" for name in candidate.collect_leaves() if name not in masks)
    yield _match_gradients(candidate, names)


@check(when=lambda case: case.tracks_parameters and case.problem.has_parameters and is_eager(case))
def parameter_gradients(candidate: Candidate) -> Iterator[Observation]:
    """Gradients with respect to parameters, in the reference's layout, equal the oracle's within the error budget."""
    parameters = candidate.inputs.parameters
    wanted = (f"grad.{name}" for name, parameter in parameters.items() if can_have_gradient(parameter))
    yield _match_gradients(candidate, wanted)


@check(when=lambda case: _tracks_inputs(case) and bool(case.problem.tracked_masks))
def mask_gradients(candidate: Candidate) -> Iterator[Observation]:
    """Gradients with respect to additive masks equal the oracle's within the error budget."""
    yield _match_gradients(candidate, (f"grad.{name}" for name in candidate.case.problem.tracked_masks))


@check(
    when=lambda case: _tracks_inputs(case) and case.problem.mask != "none" and not case.problem.shares_queries,
    case_transforms=True,
)
def hidden_keys_get_no_gradient(candidate: Candidate) -> Iterator[Observation]:
    """The gradient of a token that is hidden from every query is exactly zero."""
    case, case_transforms = candidate.case, get_case_transforms(candidate)
    visible = candidate.operator.visible(case, candidate.inputs)
    hidden = ~visible.flatten(1, 2).any(dim=1)  # shape (batch, keys)
    masked = (~visible.any(dim=-1)).flatten(1).any(dim=1)[:, None]  # the sequences with a fully masked row
    parts: list[tuple[Tensor, Rows]] = [(hidden & ~masked, "")]
    policies = candidate.implementation.policies
    if policies.hidden_rows != "mean" and policies.hidden_row_gradients != "nan":
        parts.append((hidden & masked, "masked_or_beside"))
    axes = (case_transforms.sequence_axis(case), case_transforms.length_axis(case))
    for name in ("grad.key", "grad.value"):
        if name in candidate.gradients:
            found = candidate.gradients[name]
            alone = found.dim() < len(axes) + 1
            for tokens, rows in parts:
                there = found[tokens[0]] if alone else found.movedim(axes, (0, 1))[tokens]
                zero = torch.zeros_like(there)
                yield Equal(value=there, expected=zero, quantity=name, how=phrase("hidden_tokens"), rows=rows)


@check(when=_tracks_inputs)
def backward_repeats(candidate: Candidate) -> Iterator[Observation]:
    """A second backward pass through the same graph gives the same gradients."""
    outputs = candidate.run()
    first, second = candidate.compute_gradients(outputs), candidate.compute_gradients(outputs)
    how = phrase("second_backward_pass")
    yield from (_compare_gradients(second[name], first[name], name, how) for name in first)


# The check needs an output that depends on the one tensor that requires a gradient. In cases
# without sequences, without queries, or without any key, the output depends on no input.
@check(
    when=lambda case: (
        _tracks_inputs(case)
        and case.problem.regime in ("plain", "flat", "identity")
        and min(case.problem.sequences, case.problem.queries, case.problem.columns) > 0
    )
)
def one_gradient_alone(candidate: Candidate) -> Iterator[Observation]:
    """A gradient is the same when no other tensor requires a gradient."""
    leaves = candidate.collect_leaves()
    alone = [name for name in leaves if name in candidate.case.problem.additive_masks] or list(leaves)[:1]
    for name in alone:
        found = compute_gradient_alone(candidate, leaves[name])
        how = phrase("gradient_alone")
        yield _compare_gradients(found, candidate.gradients[f"grad.{name}"], f"grad.{name}", how)


@check(when=lambda case: _tracks_inputs(case) and case.problem.regime in ("plain", "flat", "identity"))
def cotangent_layout_is_free(candidate: Candidate) -> Iterator[Observation]:
    """The gradient of the output may have any strides: 0, as after sum(), or those of a transposed tensor."""
    leaves = candidate.collect_leaves()
    output = candidate.run()["output"]

    def compute_gradients(cotangent: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(
            output, list(leaves.values()), cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
        )

    one = torch.ones((), dtype=output.dtype, device=output.device).expand(output.shape)
    drawn = candidate.inputs.cotangents["output"]
    transposed = drawn.mT.contiguous().mT if drawn.dim() > 1 else drawn
    # All other outputs have the cotangent 0, because the gradients are those of the output alone.
    none = {f"cotangent.{n}": torch.zeros_like(t) for n, t in candidate.inputs.cotangents.items() if n != "output"}
    for how, strange, plain in (
        (phrase("expanded_cotangent"), one, one.contiguous()),
        (phrase("transposed_cotangent"), transposed, drawn.contiguous()),
    ):
        given = none | {"cotangent.output": plain}
        for name, value, expected in zip(leaves, compute_gradients(strange), compute_gradients(plain), strict=True):
            yield Agree(value=value, expected=expected, quantity=f"grad.{name}", how=how, contiguous=given)


@check(
    when=lambda case: (
        _tracks_inputs(case)
        and case.dtype == "float64"
        and case.problem.regime in ("plain", "flat")
        and _has_separate_inputs(case)
    ),
    case_transforms=True,
)
def second_derivatives(candidate: Candidate) -> Iterator[Observation]:
    """If the policies declare twice_differentiable, second derivatives equal finite differences of the gradients."""
    if not candidate.implementation.policies.twice_differentiable:
        raise Refusal(phrase("not_twice_differentiable"))
    query = candidate.inputs.tensors["query"]

    def compute_gradient(*, graph: bool = False) -> Tensor:
        (found,) = torch.autograd.grad(candidate.compute_loss(candidate.run()), [query], create_graph=graph)
        return found

    first = compute_gradient(graph=True)
    weights = torch.cos(first.detach())

    def compute_weighted_sum() -> Tensor:
        return (compute_gradient() * weights).sum()

    others = {name: leaf for name, leaf in candidate.collect_leaves().items() if name in ("key", "value")}
    # Compute all second derivatives before ``compare_with_slope`` changes a tensor in place: a
    # backward pass raises an exception if a tensor saved for it was changed.
    seconds = torch.autograd.grad(first, list(others.values()), weights)
    for (name, tensor), second in zip(others.items(), seconds, strict=True):
        yield compare_with_slope(
            second, tensor, compute_weighted_sum, f"grad.{name}", how=phrase("second_derivative"),
            precision=candidate.precision, weights={"grad.query": weights},
        )  # fmt: skip


def _match_gradients(candidate: Candidate, names: Iterable[str]) -> Observation:
    return Match(quantities={name: candidate.gradients[name] for name in names}, outputs=candidate.outputs)


def _has_separate_inputs(case: Case) -> bool:
    return has_tokens(case) and not case.problem.self_attention


def _compare_gradients(value: Tensor, expected: Tensor, name: str, how: Phrase) -> Observation:
    return Agree(value=value, expected=expected, quantity=name, how=how)
