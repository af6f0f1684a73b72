"""Chapter *gradients*: backward is forward's derivative, whoever asks for it and how."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Agree, Equal, Match, Observation
from attnbench.checks.requirement import case_transforms_of, check, eager, has_tokens
from attnbench.checks.runs import gradient_alone
from attnbench.checks.slopes import is_slope
from attnbench.interface import Refusal


def _of_inputs(case: Case) -> bool:
    return case.tracks_inputs and eager(case)


@check(when=_of_inputs)
def input_gradients(candidate: Candidate) -> Iterator[Observation]:
    """Gradients of the tokens that are given equal the oracle's within the error budget."""
    masks = candidate.case.problem.additive_masks
    names = (f"grad.{name}" for name in candidate.leaves() if name not in masks)
    yield Match(quantities={name: candidate.gradients[name] for name in names})


@check(when=lambda case: case.tracks_parameters and case.problem.has_parameters and eager(case))
def parameter_gradients(candidate: Candidate) -> Iterator[Observation]:
    """Gradients of every parameter, in the reference's layout, equal the oracle's within the error budget."""
    wanted = (f"grad.{name}" for name in candidate.inputs.parameters)
    yield Match(quantities={name: candidate.gradients[name] for name in wanted})


@check(when=lambda case: _of_inputs(case) and case.problem.additive_masks)
def mask_gradients(candidate: Candidate) -> Iterator[Observation]:
    """Gradients of additive masks equal the oracle's within the error budget."""
    names = (f"grad.{name}" for name in candidate.case.problem.additive_masks)
    yield Match(quantities={name: candidate.gradients[name] for name in names})


@check(
    when=lambda case: _of_inputs(case) and case.problem.mask != "none" and not case.problem.shares_queries,
    case_transforms=True,
)
def hidden_keys_get_no_gradient(candidate: Candidate) -> Iterator[Observation]:
    """A token that is hidden from every query gets a gradient of exactly zero."""
    case, case_transforms = candidate.case, case_transforms_of(candidate)
    hidden = ~candidate.operator.visible(case, candidate.inputs).flatten(1, 2).any(dim=1)  # (batch, keys)
    axes = (case_transforms.sequence_axis(case), case_transforms.length_axis(case))
    for name in ("grad.key", "grad.value"):
        if name in candidate.gradients:
            found = candidate.gradients[name]
            alone = found.dim() < len(axes) + 1
            there = found[hidden[0]] if alone else found.movedim(axes, (0, 1))[hidden]
            yield Equal(value=there, expected=torch.zeros_like(there), what=f"{name} of hidden tokens")


@check(when=_of_inputs)
def backward_repeats(candidate: Candidate) -> Iterator[Observation]:
    """A second backward over the same graph gives the same gradients."""
    outputs = candidate.run()
    first, second = candidate.gradients_of(outputs), candidate.gradients_of(outputs)
    yield from (_same(second[name], first[name], name, "of the second backward") for name in first)


# Without any sequence, query or column nothing that comes in alone reaches the output.
@check(
    when=lambda case: (
        _of_inputs(case)
        and case.problem.regime in ("plain", "flat", "identity")
        and min(case.problem.sequences, case.problem.queries, case.problem.columns) > 0
    )
)
def one_gradient_alone(candidate: Candidate) -> Iterator[Observation]:
    """A gradient is the same when nothing else requires one."""
    leaves = candidate.leaves()
    alone = [name for name in leaves if name in candidate.case.problem.additive_masks] or list(leaves)[:1]
    for name in alone:
        found = gradient_alone(candidate, leaves[name])
        yield _same(found, candidate.gradients[f"grad.{name}"], f"grad.{name}", "alone")


@check(when=lambda case: _of_inputs(case) and case.problem.regime in ("plain", "flat", "identity"))
def cotangent_layout_is_free(candidate: Candidate) -> Iterator[Observation]:
    """What comes back from above may have any strides: 0, as of a sum, or those of a transposed tensor."""
    leaves = candidate.leaves()
    output = candidate.run()["output"]

    def gradients(cotangent: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(
            output, list(leaves.values()), cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
        )

    one = torch.ones((), dtype=output.dtype, device=output.device).expand(output.shape)
    drawn = candidate.inputs.cotangents["output"]
    turned = drawn.mT.contiguous().mT if drawn.dim() > 1 else drawn
    for what, strange, plain in (
        ("of a sum, against that of ones", one, one.contiguous()),
        ("of a transposed cotangent, against that of its copy", turned, drawn.contiguous()),
    ):
        for name, value, expected in zip(leaves, gradients(strange), gradients(plain), strict=True):
            yield Agree(value=value, expected=expected, quantity=f"grad.{name}", what=f"grad.{name} {what}")


@check(
    when=lambda case: (
        _of_inputs(case) and case.dtype == "float64" and case.problem.regime in ("plain", "flat") and _apart(case)
    ),
    case_transforms=True,
)
def second_derivatives(candidate: Candidate) -> Iterator[Observation]:
    """Where it is declared, gradients have gradients: those that differences of gradients show."""
    if not candidate.implementation.policies.twice_differentiable:
        raise Refusal("not declared twice differentiable")
    query = candidate.inputs.tensors["query"]

    def gradient(*, graph: bool = False) -> Tensor:
        (found,) = torch.autograd.grad(candidate.loss(candidate.run()), [query], create_graph=graph)
        return found

    first = gradient(graph=True)
    weights = torch.cos(first.detach())

    def weighted() -> Tensor:
        return (gradient() * weights).sum()

    others = {name: leaf for name, leaf in candidate.leaves().items() if name in ("key", "value")}
    # All of them before a tensor is written to: what is saved for them must be as it was.
    seconds = torch.autograd.grad(first, list(others.values()), weights)
    for (name, tensor), second in zip(others.items(), seconds, strict=True):
        yield is_slope(second, tensor, weighted, f"a second derivative by {name}")


def _apart(case: Case) -> bool:
    return has_tokens(case) and not case.problem.self_attention


def _same(value: Tensor, expected: Tensor, name: str, how: str) -> Observation:
    what = f"{name} {how}"
    return Agree(value=value, expected=expected, quantity=name, what=what)
