"""Chapter *gradients*: backward is forward's derivative, whoever asks for it and how."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.checks.claims import Agree, Claim, Equal, Match
from attnbench.checks.requirement import check, eager, has_tokens, siblings_of
from attnbench.checks.runs import gradient_alone
from attnbench.checks.slopes import is_slope
from attnbench.interface import Refusal
from attnbench.subject import Subject


def _of_inputs(case: Case) -> bool:
    return case.tracks_inputs and eager(case)


@check(when=_of_inputs)
def input_gradients(subject: Subject) -> Iterator[Claim]:
    """Gradients of the tokens that are given equal the oracle's within the error budget."""
    masks = subject.case.problem.additive_masks
    names = (f"grad.{name}" for name in subject.leaves() if name not in masks)
    yield Match(quantities={name: subject.gradients[name] for name in names})


@check(when=lambda case: case.tracks_parameters and case.problem.has_parameters and eager(case))
def parameter_gradients(subject: Subject) -> Iterator[Claim]:
    """Gradients of every parameter, in the reference's layout, equal the oracle's within the error budget."""
    wanted = (f"grad.{name}" for name in subject.inputs.parameters)
    yield Match(quantities={name: subject.gradients[name] for name in wanted})


@check(when=lambda case: _of_inputs(case) and case.problem.additive_masks)
def mask_gradients(subject: Subject) -> Iterator[Claim]:
    """Gradients of additive masks equal the oracle's within the error budget."""
    names = (f"grad.{name}" for name in subject.case.problem.additive_masks)
    yield Match(quantities={name: subject.gradients[name] for name in names})


@check(
    when=lambda case: _of_inputs(case) and case.problem.mask != "none" and not case.problem.shares_queries,
    siblings=True,
)
def hidden_keys_get_no_gradient(subject: Subject) -> Iterator[Claim]:
    """A token that is hidden from every query gets a gradient of exactly zero."""
    case, siblings = subject.case, siblings_of(subject)
    hidden = ~subject.operator.visible(case, subject.inputs).flatten(1, 2).any(dim=1)  # (batch, keys)
    axes = (siblings.sequence_axis(case), siblings.length_axis(case))
    for name in ("grad.key", "grad.value"):
        if name in subject.gradients:
            found = subject.gradients[name]
            alone = found.dim() < len(axes) + 1
            there = found[hidden[0]] if alone else found.movedim(axes, (0, 1))[hidden]
            yield Equal(value=there, expected=torch.zeros_like(there), what=f"{name} of hidden tokens")


@check(when=_of_inputs)
def backward_repeats(subject: Subject) -> Iterator[Claim]:
    """A second backward over the same graph gives the same gradients."""
    outputs = subject.run()
    first, second = subject.gradients_of(outputs), subject.gradients_of(outputs)
    yield from (_same(second[name], first[name], name, "of the second backward") for name in first)


# Without any sequence, query or column nothing that comes in alone reaches the output.
@check(
    when=lambda case: (
        _of_inputs(case)
        and case.problem.regime in ("plain", "flat", "identity")
        and min(case.problem.sequences, case.problem.queries, case.problem.columns) > 0
    )
)
def one_gradient_alone(subject: Subject) -> Iterator[Claim]:
    """A gradient is the same when nothing else requires one."""
    leaves = subject.leaves()
    alone = [name for name in leaves if name in subject.case.problem.additive_masks] or list(leaves)[:1]
    for name in alone:
        found = gradient_alone(subject, leaves[name])
        yield _same(found, subject.gradients[f"grad.{name}"], f"grad.{name}", "alone")


@check(when=lambda case: _of_inputs(case) and case.problem.regime in ("plain", "flat", "identity"))
def cotangent_layout_is_free(subject: Subject) -> Iterator[Claim]:
    """What comes back from above may have any strides: 0, as of a sum, or those of a transposed tensor."""
    leaves = subject.leaves()
    output = subject.run()["output"]

    def gradients(cotangent: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(
            output, list(leaves.values()), cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
        )

    one = torch.ones((), dtype=output.dtype, device=output.device).expand(output.shape)
    drawn = subject.inputs.cotangents["output"]
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
    siblings=True,
)
def second_derivatives(subject: Subject) -> Iterator[Claim]:
    """Where it is declared, gradients have gradients: those that differences of gradients show."""
    if not subject.implementation.policies.twice_differentiable:
        raise Refusal("not declared twice differentiable")
    query = subject.inputs.tensors["query"]

    def gradient(*, graph: bool = False) -> Tensor:
        (found,) = torch.autograd.grad(subject.loss(subject.run()), [query], create_graph=graph)
        return found

    first = gradient(graph=True)
    weights = torch.cos(first.detach())

    def weighted() -> Tensor:
        return (gradient() * weights).sum()

    others = {name: leaf for name, leaf in subject.leaves().items() if name in ("key", "value")}
    # All of them before a tensor is written to: what is saved for them must be as it was.
    seconds = torch.autograd.grad(first, list(others.values()), weights)
    for (name, tensor), second in zip(others.items(), seconds, strict=True):
        yield is_slope(second, tensor, weighted, f"a second derivative by {name}")


def _apart(case: Case) -> bool:
    return has_tokens(case) and not case.problem.self_attention


def _same(value: Tensor, expected: Tensor, name: str, how: str) -> Claim:
    what = f"{name} {how}"
    return Agree(value=value, expected=expected, quantity=name, what=what)
