"""Chapter *transforms*: calls under the transforms of torch.func agree with plain calls."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnbench.analysis.deviations import make_deviation
from attnbench.candidate.candidate import Candidate
from attnbench.cases import NARROW_DTYPES, Case
from attnbench.checks.observations import Agree, Holds, Observation
from attnbench.checks.requirement import check, is_small
from attnbench.checks.runs import compare_runs, draw_again, has_masked_rows, try_call
from attnbench.interface import Inputs, Refusal
from attnbench.records.value_facts import phrase

Result = TypeVar("Result")
# Largest number of query-key pairs, over all sequences and heads, of the cases of this chapter. Transforms do not
# depend on the sizes.
PAIRS = 300
Call = Callable[..., Any]


def _has_batch(case: Case) -> bool:
    """Whether a case is very small, computes gradients of inputs, and has several sequences, which could be confused.

    Under a transform, an implementation in loops of Python takes up to 0.3 s on such a case.
    """
    several = case.problem.sequences > 1 and case.problem.pairs <= PAIRS
    return several and case.tracks_inputs and is_small(case)


@check(when=_has_batch)
def vmap_equals_loop(candidate: Candidate) -> Iterator[Observation]:
    """Under torch.func.vmap, examples with masks of their own or common masks have the outputs of a loop over them."""
    if candidate.implementation.policies.fixed_values:
        raise Refusal(phrase("prepared_for_values"))
    examples = _draw_examples(candidate)
    common = [_share_masks(candidate, inputs) for inputs in examples]
    masked = any(_is_mask(name, tensor, candidate.case) for name, tensor in candidate.inputs.tensors.items())
    variants = {"vmap_of_masks": examples, "vmap_of_common_masks": common} if masked else {"vmap": examples}
    refusals = []
    for how, inputs in variants.items():
        try:
            yield from _compare_with_loop(candidate, inputs, how)
        except Refusal as refusal:
            refusals.append(refusal)
    if len(refusals) == len(variants):
        raise refusals[0]


@check(when=_has_batch)
def func_grad_works(candidate: Candidate) -> Iterator[Observation]:
    """Gradients with respect to the inputs by torch.func.grad equal those of a backward pass."""
    leaves, names = candidate.collect_leaves(), candidate.list_differentiable(candidate.outputs)

    def differentiate(call: Call) -> tuple[Tensor, ...]:
        loss = _make_loss(candidate, call, leaves, names)
        return torch.func.grad(loss, argnums=tuple(range(len(leaves))))(*_detach(leaves))  # type: ignore[no-any-return]

    found, violations = _transform(candidate, "func_grad", differentiate)
    yield from violations
    if found is not None:
        gradients = {f"grad.{name}": gradient for name, gradient in zip(leaves, found, strict=True)}
        yield from compare_runs(gradients, candidate.gradients, phrase("func_grad"))


# In half precision the sum of a gradient in one direction is mostly rounding.
@check(when=lambda case: _has_batch(case) and case.dtype not in NARROW_DTYPES)
def forward_derivatives(candidate: Candidate) -> Iterator[Observation]:
    """A derivative of forward mode (torch.func.jvp) equals the gradient of a backward pass, in one direction."""
    has_masked_rows(candidate)  # a row that is NaN makes the derivative of the sum over all rows NaN
    leaves, names = candidate.collect_leaves(), candidate.list_differentiable(candidate.outputs)
    masks = candidate.case.problem.additive_masks
    # The query shows the softmax. Each further tensor would take as long again.
    chosen = list(dict.fromkeys([next(iter(leaves)), *(name for name in leaves if name in masks)]))
    for name in chosen:
        leaf = leaves[name]
        direction = _choose_direction(leaf)

        def push(call: Call, leaf: Tensor = leaf, name: str = name, direction: Tensor = direction) -> Tensor:
            loss = _make_loss(candidate, call, {name: leaf}, names)
            return torch.func.jvp(loss, (leaf.detach(),), (direction,))[1]  # type: ignore[no-any-return]

        found, violations = _transform(candidate, "forward_derivative", push)
        yield from violations
        if found is None:
            return
        quantity = f"grad.{name}"
        expected = (candidate.gradients[quantity].double() * direction).sum().to(found)
        yield Agree(value=found.detach(), expected=expected, quantity=quantity, how=phrase("forward_derivative"))


def _transform(
    candidate: Candidate, how: str, transform: Callable[[Call], Result]
) -> tuple[Result | None, Sequence[Observation]]:
    """Return the result of a transform of the candidate's call, or None and a violated condition if it raised.

    Raises: Refusal if it raised, and the policies declare it, the same transform of the reference raises too, or
    the exception is torch's NotImplementedError for an operator without a derivative of forward mode.
    """

    def act() -> Result:
        try:
            return transform(candidate.call)
        except NotImplementedError as error:
            _, text = try_call(partial(_raise, error))
            raise Refusal(phrase("transform_not_implemented", raised=text)) from error

    with warnings.catch_warnings():
        # Torch warns that vmap calls an operator without a batching rule in a loop, and at the first derivative of
        # forward mode that its own code is deprecated.
        warnings.simplefilter("ignore")
        found, fault = try_call(act)
        if not fault:
            return found, ()
        if candidate.implementation.policies.transforms == "refused":
            raise Refusal(phrase("transforms_refused"))
        _, of_reference = try_call(lambda: transform(candidate.reference))
    if of_reference:
        raise Refusal(phrase("reference_not_transformed", raised=of_reference))
    violation = phrase(f"{how}_raised", raised=fault)
    deviation = make_deviation(candidate.implementation.policies, transforms="refused")
    return None, [Holds(holds=False, violation=violation, deviation=deviation)]


def _raise(error: Exception) -> None:
    raise error


def _make_loss(
    candidate: Candidate, call: Call, leaves: Mapping[str, Tensor], names: Sequence[str]
) -> Callable[..., Tensor]:
    """Return the loss of a call as a function of the tensors that stand for ``leaves``, in this order."""
    tensors = candidate.inputs.tensors

    def compute_loss(*given: Tensor) -> Tensor:
        pairs = list(zip(leaves.values(), given, strict=True))
        changed = {name: new for name, old in tensors.items() for leaf, new in pairs if old is leaf}
        return candidate.weigh(candidate.run(call, **changed), names)

    return compute_loss


def _detach(leaves: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    return tuple(leaf.detach() for leaf in leaves.values())


def _choose_direction(leaf: Tensor) -> Tensor:
    """Return a direction in which every element changes; the absolute values have the sum 1.

    A gradient in this direction is a weighted mean of its elements, so its error is at most that of an element.
    """
    direction = torch.cos(torch.arange(leaf.numel(), dtype=torch.float64, device=leaf.device)).view_as(leaf)
    return (direction / direction.abs().sum()).to(leaf.dtype)


def _draw_examples(candidate: Candidate) -> list[Inputs]:
    """Return the inputs of the case and of the same case with further seeds.

    Their number differs from the number of sequences, so that a confusion of both changes a shape or a value. Whole
    numbers, such as lengths, are those of the case: an implementation may read them, which vmap forbids.
    """
    case, own = candidate.case, candidate.inputs
    examples = [own]
    for seed in range(1, 2 if case.problem.sequences == 3 else 3):
        _, drawn = draw_again(candidate, further=seed)
        common = {name: tensor for name, tensor in own.tensors.items() if not _is_mapped(tensor)}
        examples.append(replace(drawn, tensors=drawn.tensors | common))
    return examples


def _share_masks(candidate: Candidate, inputs: Inputs) -> Inputs:
    own = candidate.inputs.tensors
    masks = {name: tensor for name, tensor in own.items() if _is_mask(name, tensor, candidate.case)}
    return replace(inputs, tensors=inputs.tensors | masks)


def _is_mapped(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.dtype == torch.bool


def _is_mask(name: str, tensor: Tensor, case: Case) -> bool:
    return tensor.dtype == torch.bool or name in case.problem.additive_masks


def _compare_with_loop(candidate: Candidate, examples: Sequence[Inputs], how: str) -> Iterator[Observation]:
    """Observe that vmap over examples gives the outputs of a loop; a tensor that all examples have is not mapped."""
    tensors = [inputs.tensors for inputs in examples]
    # The first name of each tensor that differs among the examples; several arguments may be one tensor.
    first: dict[int, str] = {}
    for name, tensor in tensors[0].items():
        if any(other[name] is not tensor for other in tensors[1:]):
            first.setdefault(id(tensor), name)
    stacked = [torch.stack([one[name].detach() for one in tensors]) for name in first.values()]
    names: list[str] = []

    def map_examples(call: Call) -> tuple[Tensor, ...]:
        def answer(*given: Tensor) -> tuple[Tensor, ...]:
            by_tensor = dict(zip(first, given, strict=True))
            changed = {name: by_tensor[id(one)] for name, one in tensors[0].items() if id(one) in by_tensor}
            with candidate.call_mode():
                outputs = candidate.name_outputs(call(**candidate.inputs.arguments() | changed))
            names[:] = outputs
            return tuple(outputs.values())

        return torch.func.vmap(answer, randomness="different")(*stacked)

    found, violations = _transform(candidate, how, map_examples)
    yield from violations
    if found is None:
        return
    mapped = dict(zip(names, found, strict=True))
    loop = [candidate.move_to(candidate.case, inputs).run() for inputs in examples]
    parts = [
        candidate.blank_excluded_rows({name: value[index] for name, value in mapped.items()}, candidate.case, inputs)
        for index, inputs in enumerate(examples)
    ]
    yield from compare_runs(_stack(parts), _stack(loop), phrase(how))


def _stack(outputs: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in outputs]) for name in outputs[0]}
