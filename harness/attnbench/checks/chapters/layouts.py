"""Chapter *layouts*: results depend on the values of tensors, not on their strides."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Observation
from attnbench.checks.requirement import check, get_case_transforms, has_tokens, is_eager
from attnbench.checks.runs import compare_runs
from attnbench.interface import Inputs
from attnbench.oracle.inputs import change_tensors
from attnbench.records.value_facts import Phrase, phrase

__all__ = ["LAYOUTS", "repeat_part"]

_REGIMES = ("flat", "plain", "identity")
# Number of elements in the gap that precedes each row of a tensor in memory. It is odd, so that
# rows are not aligned.
OFFSET = 3
# Number that fills the gaps between the elements of a tensor if NaN cannot be used (``_get_gap``).
# It is far outside the range of the data, and finite in every dtype.
BESIDE = 1e4
# Shape (rows, features) of the matrix on which ``_matmul_reads_past_rows`` tests torch's matrix
# product. Neither number is a multiple of a tile size.
ODD_MATRIX = (33, 21)


def _is_ordinary(case: Case) -> bool:
    """Whether a case is eager, has tokens, and has logits of moderate size."""
    problem = case.problem
    return is_eager(case) and problem.regime in _REGIMES and has_tokens(case)


@check(when=_is_ordinary)
def strided_inputs(candidate: Candidate) -> Iterator[Observation]:
    """Inputs and masks that are not contiguous give the same outputs and gradients as contiguous ones."""
    expected = _compute_results(candidate, candidate.inputs)
    for name, layout in LAYOUTS.items():
        inputs = change_tensors(candidate.inputs, lambda _, tensor, layout=layout: layout(tensor))  # type: ignore[misc]
        yield from _compare_layouts(candidate, inputs, expected, phrase(name), {})
    # Keys and values with different strides; equal strides hide that one tensor is read with those of the other.
    if candidate.inputs.tensors.get("key") is not candidate.inputs.tensors.get("value"):
        inputs = change_tensors(candidate.inputs, lambda name, tensor: UNEQUAL.get(name, torch.clone)(tensor))
        yield from _compare_layouts(candidate, inputs, expected, phrase("unequal_strides"), {})


@check(when=lambda case: _is_ordinary(case) and case.problem.sequences > 1, case_transforms=True)
def expanded_inputs(candidate: Candidate) -> Iterator[Observation]:
    """One sequence and one mask, expanded with a stride of 0, give the same outputs and gradients as copies."""

    def repeat(name: str, tensor: Tensor) -> Tensor:
        place = get_case_transforms(candidate).shared_by_sequences(candidate.case, name)
        return tensor if place is None else repeat_part(tensor, *place)

    expanded = change_tensors(candidate.inputs, repeat)
    copies = _copy(expanded)
    expected = _compute_results(candidate, copies)
    yield from _compare_layouts(candidate, expanded, expected, phrase("expanded_inputs"), dict(copies.tensors))


@check(
    when=lambda case: (
        _is_ordinary(case)
        and not (case.problem.self_attention or case.problem.key_is_value or case.problem.query_is_key)
    ),
    case_transforms=True,
)
def packed_inputs(candidate: Candidate) -> Iterator[Observation]:
    """Query, key and value as slices of one packed tensor give the same results as three separate tensors."""
    tensors = candidate.inputs.tensors
    alike = tensors["query"].shape[:-1] == tensors["key"].shape[:-1]
    names = ("query", "key", "value") if alike else ("key", "value")
    widths = [tensors[name].shape[-1] for name in names]
    parts = torch.split(torch.cat([tensors[name].detach() for name in names], dim=-1), widths, dim=-1)
    slices = {name: part.requires_grad_(tensors[name].requires_grad) for name, part in zip(names, parts, strict=True)}
    expected = _compute_results(candidate, candidate.inputs)
    packed = replace(candidate.inputs, tensors=tensors | slices)
    yield from _compare_layouts(candidate, packed, expected, phrase("packed_inputs"), {})


def _compare_layouts(
    candidate: Candidate, inputs: Inputs, expected: dict[str, Tensor], how: Phrase, changed: dict[str, Tensor]
) -> Iterator[Observation]:
    """Observe that inputs give the results ``expected`` of contiguous inputs.

    ``changed`` has the tensors whose values differ from the case's, by name. If the results differ, contiguous copies
    are tried again. Strides are the cause only if the copies give ``expected``: an implementation that remembers
    earlier calls may differ for another reason.
    """
    found = _compute_results(candidate, inputs)
    again = expected if _is_equal(found, expected) else _compute_results(candidate, _copy(inputs))
    yield from compare_runs(found, expected, how, contiguous=changed if _is_equal(again, expected) else None)


def _copy(inputs: Inputs) -> Inputs:
    """Return the inputs with contiguous copies of the tensors."""
    return change_tensors(inputs, lambda _, tensor: tensor.clone(memory_format=torch.contiguous_format))


def _is_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two results have the same bits; NaN is different from NaN."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _compute_results(candidate: Candidate, inputs: Inputs) -> dict[str, Tensor]:
    """Compute the outputs and, if inputs require gradients in this case, the gradients of the inputs."""
    outputs = candidate.run() if inputs is candidate.inputs else candidate.run_on(candidate.case, inputs)
    if not candidate.case.tracks_inputs:
        return outputs
    # A tensor that several arguments share is one leaf, named after the first of these arguments:
    # the names are visited in reverse order, so the first argument is stored last.
    leaves = {id(tensor): (name, tensor) for name, tensor in reversed(inputs.tensors.items()) if tensor.requires_grad}
    found = torch.autograd.grad(
        candidate.compute_loss(outputs), [tensor for _, tensor in leaves.values()],
        retain_graph=True, allow_unused=True, materialize_grads=True,
    )  # fmt: skip
    return outputs | {f"grad.{name}": gradient for (name, _), gradient in zip(leaves.values(), found, strict=True)}


def _get_gap(tensor: Tensor) -> float | bool:
    """Return the value that fills the gaps between the elements of a tensor in memory.

    It is NaN if possible: NaN changes a result even if an implementation multiplies it by 0.
    """
    if tensor.is_floating_point():
        return BESIDE if _matmul_reads_past_rows(tensor.dtype, tensor.device.type) else math.nan
    return True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max


@cache
def _matmul_reads_past_rows(dtype: torch.dtype, device: str) -> bool:
    """Whether torch's own matrix product reads numbers past the end of rows and multiplies them by 0.

    An implementation that calls torch's product cannot avoid these reads. In bfloat16 with AMX, oneDNN reads up to the
    end of its tiles: https://github.com/uxlfoundation/oneDNN/issues/5717.
    """
    rows, features = ODD_MATRIX
    wide = torch.full((rows, features + OFFSET), math.nan, dtype=dtype, device=device)
    matrix = wide[:, OFFSET:].fill_(1.0)
    return bool((matrix @ matrix.mT).isnan().any())


def _slice_wider(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor. The copy is a slice of wider rows, so a gap precedes each of its rows in memory."""
    wide = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + OFFSET), _get_gap(tensor))
    return wide[..., OFFSET:].copy_(tensor)


def _skip_elements(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor. The copy consists of every second element of longer rows."""
    wide = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1] + OFFSET), _get_gap(tensor))
    return wide[..., OFFSET::2].copy_(tensor)


def _store_transposed(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor with the last two axes swapped in memory.

    A tensor of one dimension has no two axes; its copy is every second element of a longer row.
    """
    return _slice_wider(tensor.mT.contiguous()).mT if tensor.dim() > 1 else _skip_elements(tensor)


def _store_first_axis_last(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor with the first and the last axis swapped in memory, as (features, length, batch)."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sliced_inputs": _slice_wider,
    "spread_inputs": _skip_elements,
    "transposed_inputs": _store_transposed,
    "first_axis_last": _store_first_axis_last,
}


# Layouts of keys and values that differ from each other, by the name of the input.
UNEQUAL: dict[str, Callable[[Tensor], Tensor]] = {"key": _store_transposed, "value": _slice_wider}


def repeat_part(tensor: Tensor, axis: int, one: int) -> Tensor:
    """Return a tensor of the same shape, in which every slice along ``axis`` equals slice ``one`` of ``tensor``.

    All slices share their memory: the stride along ``axis`` is 0. The shared slice lies in a larger
    tensor, so that a gap follows it in memory.
    """
    part = tensor.narrow(axis, one % tensor.shape[axis], 1)
    shape = list(part.shape)
    shape[axis] = 2
    return tensor.new_full(shape, _get_gap(tensor)).narrow(axis, 0, 1).copy_(part).expand(tensor.shape)
