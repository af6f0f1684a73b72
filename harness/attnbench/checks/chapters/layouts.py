"""Chapter *layouts*: numbers count, not where they lie in memory."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Observation
from attnbench.checks.requirement import case_transforms_of, check, eager, has_tokens
from attnbench.checks.runs import agree
from attnbench.interface import Inputs
from attnbench.oracle.inputs import changed

__all__ = ["LAYOUTS", "repeated"]

_REGIMES = ("flat", "plain", "identity")
# Elements before the first one; odd, so that nothing is aligned any more.
OFFSET = 3
# What lies between elements where it cannot be NaN: far outside the data, and finite in every dtype.
BESIDE = 1e4
# Rows and features of a matrix that does not fill the tiles of any product.
ODD_MATRIX = (33, 21)


def _ordinary(case: Case) -> bool:
    problem = case.problem
    return eager(case) and problem.regime in _REGIMES and has_tokens(case)


@check(when=_ordinary)
def strided_inputs(candidate: Candidate) -> Iterator[Observation]:
    """Inputs and masks that are not contiguous give the outputs and gradients that contiguous ones give."""
    expected = _results(candidate, candidate.inputs)
    for how, layout in LAYOUTS.items():
        inputs = changed(candidate.inputs, lambda _, tensor, layout=layout: layout(tensor))  # type: ignore[misc]
        yield from agree(_results(candidate, inputs), expected, f"of inputs {how}, against that of contiguous ones")


@check(when=lambda case: _ordinary(case) and case.problem.sequences > 1, case_transforms=True)
def expanded_inputs(candidate: Candidate) -> Iterator[Observation]:
    """One sequence, and one mask, repeated by a stride of 0 give what their copies give."""

    def repeat(name: str, tensor: Tensor) -> Tensor:
        place = case_transforms_of(candidate).shared_by_sequences(candidate.case, name)
        return tensor if place is None else repeated(tensor, *place)

    expanded = changed(candidate.inputs, repeat)
    copies = changed(expanded, lambda _, tensor: tensor.clone(memory_format=torch.contiguous_format))
    yield from agree(
        _results(candidate, expanded), _results(candidate, copies), "of expanded inputs, against their copies'"
    )


@check(
    when=lambda case: (
        _ordinary(case) and not (case.problem.self_attention or case.problem.key_is_value or case.problem.query_is_key)
    ),
    case_transforms=True,
)
def packed_inputs(candidate: Candidate) -> Iterator[Observation]:
    """Slices of one packed tensor as query, key and value give what three tensors of their own give."""
    tensors = candidate.inputs.tensors
    alike = tensors["query"].shape[:-1] == tensors["key"].shape[:-1]
    names = ("query", "key", "value") if alike else ("key", "value")
    widths = [tensors[name].shape[-1] for name in names]
    parts = torch.split(torch.cat([tensors[name].detach() for name in names], dim=-1), widths, dim=-1)
    slices = {name: part.requires_grad_(tensors[name].requires_grad) for name, part in zip(names, parts, strict=True)}
    found = _results(candidate, replace(candidate.inputs, tensors=tensors | slices))
    yield from agree(
        found, _results(candidate, candidate.inputs), "of slices of one tensor, against that of three tensors"
    )


def _results(candidate: Candidate, inputs: Inputs) -> dict[str, Tensor]:
    """Outputs, and gradients of the inputs where the case takes them."""
    outputs = candidate.run() if inputs is candidate.inputs else candidate.on(candidate.case, inputs)
    if not candidate.case.tracks_inputs:
        return outputs
    # One tensor under several names is one leaf; backwards, so that its first name stays.
    leaves = {id(tensor): (name, tensor) for name, tensor in reversed(inputs.tensors.items()) if tensor.requires_grad}
    found = torch.autograd.grad(
        candidate.loss(outputs), [tensor for _, tensor in leaves.values()],
        retain_graph=True, allow_unused=True, materialize_grads=True,
    )  # fmt: skip
    return outputs | {f"grad.{name}": gradient for (name, _), gradient in zip(leaves.values(), found, strict=True)}


def _gap(tensor: Tensor) -> float | bool:
    """What lies between the elements: it shows wherever it is read, even times 0 where torch itself never does that."""
    if tensor.is_floating_point():
        return BESIDE if _products_read_on(tensor.dtype, tensor.device.type) else math.nan
    return True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max


@cache
def _products_read_on(dtype: torch.dtype, device: str) -> bool:
    """Whether torch's own product of matrices reads on behind a row, times 0: what calls it can do nothing about that.

    oneDNN's does so in bfloat16 with AMX, to the end of its tiles: https://github.com/uxlfoundation/oneDNN/issues/5717.
    """
    rows, features = ODD_MATRIX
    wide = torch.full((rows, features + OFFSET), math.nan, dtype=dtype, device=device)
    matrix = wide[:, OFFSET:].fill_(1.0)
    return bool((matrix @ matrix.mT).isnan().any())


def _sliced(tensor: Tensor) -> Tensor:
    """Rows of a wider tensor."""
    wide = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + OFFSET), _gap(tensor))
    return wide[..., OFFSET:].copy_(tensor)


def _spread(tensor: Tensor) -> Tensor:
    """Every second element of every row, and every second row."""
    wide = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1] + OFFSET), _gap(tensor))
    return wide[..., OFFSET::2].copy_(tensor)


def _swapped(tensor: Tensor) -> Tensor:
    """Columns of a transposed tensor; of a single row, every second element."""
    return _sliced(tensor.mT.contiguous()).mT if tensor.dim() > 1 else _spread(tensor)


def _backwards(tensor: Tensor) -> Tensor:
    """First and last axis swapped in memory, as in (features, length, batch)."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sliced from wider rows": _sliced,
    "with every second element left out": _spread,
    "stored transposed": _swapped,
    "stored with the first axis last": _backwards,
}


def repeated(tensor: Tensor, axis: int, one: int) -> Tensor:
    """One part of a tensor along an axis in place of each, with a stride of 0, and gaps behind it in memory."""
    part = tensor.narrow(axis, one % tensor.shape[axis], 1)
    shape = list(part.shape)
    shape[axis] = 2
    return tensor.new_full(shape, _gap(tensor)).narrow(axis, 0, 1).copy_(part).expand(tensor.shape)
