"""Case transforms for metamorphic relations: select sequences, queries or keys, add keys, unbatch, reorder heads.

``select``, ``pad`` and ``remove_batch`` take a case and its inputs, and return a new case and its inputs. The new
inputs have no cotangents. If one tensor is passed as several arguments, it is also one tensor in the new inputs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.masks import causal
from attnbench.oracle.inputs import change_tensors, select_positions

__all__ = [
    "length_axis",
    "pad",
    "remove_batch",
    "reorder_heads",
    "reorder_outputs",
    "select",
    "sequence_axis",
    "shared_by_sequences",
]

Index = Sequence[int] | None
TransformedCase = tuple[Case, Inputs]
# Standard deviation of the keys and values that ``pad`` adds. It is larger than the standard deviation of the case's
# own keys and values, so a check detects an implementation that does not hide the added keys.
FURTHER_STD = 4.0


def sequence_axis(case: Case) -> int:
    """Return the batch axis of query, key, value and output; the inputs must be batched."""
    return 0 if case.problem.batch_first else 1


def length_axis(case: Case) -> int:
    """Return the axis of query, key, value and output that counts tokens."""
    return 0 if case.problem.batch is None else 1 - sequence_axis(case)


def select(
    case: Case, inputs: Inputs, *, sequences: Index = None, queries: Index = None, keys: Index = None
) -> TransformedCase:
    """Return the case with only the sequences, queries or keys at these indices.

    An index may occur several times, and the indices may have any order. If query and key are one tensor, ``keys``
    selects tokens of this tensor, and ``queries`` is ignored. A causal mask with the hint ``is_causal`` is replaced by
    the causal mask of the new size. Without the hint, rows and columns are selected as in any other mask.
    """
    problem, heads = case.problem, case.problem.num_heads
    if problem.shares_queries:
        queries = keys
    blocks = None if sequences is None else [b * heads + h for b in sequences for h in range(heads)]

    def change(name: str, tensor: Tensor) -> Tensor:
        if name == "key_padding_mask":
            return select_positions(tensor, {-1: keys} if problem.batch is None else {0: sequences, 1: keys})
        if name == "attn_mask":
            return select_positions(tensor, {-2: queries, -1: keys} | ({0: blocks} if tensor.dim() == 3 else {}))
        of_batch = {} if problem.batch is None else {sequence_axis(case): sequences}
        return select_positions(tensor, of_batch | {length_axis(case): queries if name == "query" else keys})

    tensors, mask = dict(change_tensors(inputs, change).tensors), problem.mask
    named = {"batch": sequences, "queries": queries, "keys": keys}
    sizes = {name: len(index) for name, index in named.items() if index is not None}
    if problem.has_causal_mask and (queries is not None or keys is not None):
        if problem.is_causal:
            tensors["attn_mask"] = _make_causal_like(tensors["attn_mask"])
        else:
            mask = mask.replace("causal", "2d" if mask.startswith("float") else "bool2d")
    return case.with_problem(**sizes, mask=mask), replace(inputs, tensors=tensors, cotangents={})


def pad(case: Case, inputs: Inputs, count: int) -> TransformedCase:
    """Return the case with ``count`` more keys at the end, hidden by key_padding_mask.

    If query and key are one tensor, the added keys are also added as queries.
    """
    problem = case.problem
    device = inputs.tensors["query"].device
    further_queries = count if problem.shares_queries else 0

    def change(name: str, tensor: Tensor) -> Tensor:
        if name == "key_padding_mask":
            return _append_columns(tensor, count, hidden=True)
        if name == "attn_mask":
            wider = _append_columns(tensor, count, hidden=False)
            return _append_columns(wider.mT, further_queries, hidden=False).mT.contiguous()
        if name == "query" and not further_queries:
            return tensor
        axis = length_axis(case)
        shape = [*tensor.shape[:axis], count, *tensor.shape[axis + 1 :]]
        further = FURTHER_STD * torch.randn(shape, generator=torch.Generator().manual_seed(count))
        return torch.cat([tensor, further.to(tensor)], dim=axis)

    tensors = dict(change_tensors(inputs, change).tensors)
    if problem.has_causal_mask:
        tensors["attn_mask"] = _make_causal_like(tensors["attn_mask"])
    mask = problem.mask
    if problem.padding_mask is None:
        # key_padding_mask gets the dtype of attn_mask, because the reference warns if the two dtypes differ.
        dtype = tensors["attn_mask"].dtype if "attn_mask" in tensors else torch.bool
        batch = () if problem.batch is None else (problem.batch,)
        nothing_hidden = torch.zeros(*batch, problem.keys, dtype=dtype, device=device)
        tensors["key_padding_mask"] = _append_columns(nothing_hidden, count, hidden=True)
        padding = "pad" if dtype == torch.bool else "padfloat"
        mask = padding if mask == "none" else f"{mask}+{padding}"
    sizes = {"queries": problem.queries + further_queries, "keys": problem.keys + count}
    return case.with_problem(**sizes, mask=mask), replace(inputs, tensors=tensors, cotangents={})


def _append_columns(mask: Tensor, count: int, *, hidden: bool) -> Tensor:
    """Append columns for ``count`` keys, all hidden or all visible, to a mask of the reference."""
    value = hidden if mask.dtype == torch.bool else (-math.inf if hidden else 0.0)
    return torch.cat([mask, mask.new_full((*mask.shape[:-1], count), value)], dim=-1)


def remove_batch(case: Case, inputs: Inputs) -> TransformedCase:
    """Return a case whose batch size is 1 as an unbatched case."""

    def change(name: str, tensor: Tensor) -> Tensor:
        if name == "attn_mask":  # attn_mask has the same shape with batch size 1 as without a batch axis
            return tensor
        return tensor.squeeze(0 if name == "key_padding_mask" else sequence_axis(case))

    return case.with_problem(batch=None), replace(change_tensors(inputs, change), cotangents={})


def reorder_heads(case: Case, inputs: Inputs, order: Sequence[int]) -> Inputs:
    """Return inputs whose heads are permuted in parameters and 3-D masks: new head i is old head ``order[i]``."""
    heads, embed = case.problem.num_heads, case.problem.embed_dim

    def rows(parameter: Tensor) -> Tensor:
        """Permute the heads along axis 0, where each group of embed_dim rows has one block of rows for each head."""
        stacks = parameter.reshape(-1, heads, embed // heads, *parameter.shape[1:])
        return stacks[:, list(order)].reshape(parameter.shape)

    parameters = {}
    for name, parameter in inputs.parameters.items():
        if name == "out_proj.weight":
            parameters[name] = rows(parameter.mT.contiguous()).mT.contiguous()
        elif name in ("bias_k", "bias_v"):
            parameters[name] = rows(parameter.reshape(embed)).reshape(parameter.shape)
        else:
            parameters[name] = parameter if name == "out_proj.bias" else rows(parameter)

    def change(name: str, tensor: Tensor) -> Tensor:
        if name != "attn_mask" or tensor.dim() != 3:
            return tensor.clone()
        return tensor.reshape(-1, heads, *tensor.shape[1:])[:, list(order)].flatten(0, 1)

    return replace(change_tensors(inputs, change), parameters=parameters)


def reorder_outputs(case: Case, outputs: Mapping[str, Tensor], order: Sequence[int]) -> dict[str, Tensor]:
    """Return the outputs expected after ``reorder_heads``: only weights of separate heads change their order."""
    found = dict(outputs)
    if "weights" in found and not case.problem.average_attn_weights:
        found["weights"] = found["weights"][..., list(order), :, :]
    return found


def shared_by_sequences(case: Case, name: str) -> tuple[int, int] | None:
    """Return (axis, index) of the slice of an input that the check ``expanded_inputs`` repeats along this axis.

    None means that the check leaves the input ``name`` unchanged.
    """
    if name == "attn_mask":
        # A causal mask must stay causal, so it is not changed. In any other 2-D mask, the last row is repeated for
        # every query. In a 3-D mask, the matrix of the last head of the last sequence is repeated for every head of
        # every sequence.
        return None if case.problem.has_causal_mask else (0, -1)
    return (0 if name == "key_padding_mask" else sequence_axis(case)), 1


def _make_causal_like(mask: Tensor) -> Tensor:
    """Return the causal mask of the same size and dtype as ``mask``, which hides no key by a finite number."""
    hidden = causal(mask.shape[-2], mask.shape[-1], mask.device)
    return hidden if mask.dtype == torch.bool else torch.zeros_like(mask).masked_fill(hidden, -math.inf)
