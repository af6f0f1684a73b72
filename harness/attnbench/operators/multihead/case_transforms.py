"""The same problem put otherwise: other sequences, queries or keys, further keys, no batch, heads in another order.

Each function takes a case with its inputs and returns a sibling: a case with inputs of its own, without cotangents.
One tensor under several names stays one, so a token that is a query and a key at once is selected as both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.masks import causal
from attnbench.oracle.inputs import changed, picked

__all__ = [
    "length_axis",
    "outputs_of_heads",
    "padded",
    "reordered_heads",
    "selected",
    "sequence_axis",
    "shared_by_sequences",
    "unbatched",
]

Index = Sequence[int] | None
Sibling = tuple[Case, Inputs]
# Standard deviation of keys and values that padding hides: as large as the others' and more, so that a leak shows.
FURTHER_STD = 4.0


def sequence_axis(case: Case) -> int:
    """Axis of query, key, value and output that counts sequences, where there is a batch."""
    return 0 if case.problem.batch_first else 1


def length_axis(case: Case) -> int:
    """Axis of query, key, value and output that counts tokens."""
    return 0 if case.problem.batch is None else 1 - sequence_axis(case)


def selected(
    case: Case, inputs: Inputs, *, sequences: Index = None, queries: Index = None, keys: Index = None
) -> Sibling:
    """Some sequences, queries or keys, by number, in any order and as often as they are named.

    Where a token is a query and a key, ``keys`` selects both. A causal mask with its hint stays causal; without it,
    it becomes a mask like any other.
    """
    problem, heads = case.problem, case.problem.num_heads
    if problem.shares_queries:
        queries = keys
    blocks = None if sequences is None else [b * heads + h for b in sequences for h in range(heads)]

    def change(name: str, tensor: Tensor) -> Tensor:
        if name == "key_padding_mask":
            return picked(tensor, {-1: keys} if problem.batch is None else {0: sequences, 1: keys})
        if name == "attn_mask":
            return picked(tensor, {-2: queries, -1: keys} | ({0: blocks} if tensor.dim() == 3 else {}))
        of_batch = {} if problem.batch is None else {sequence_axis(case): sequences}
        return picked(tensor, of_batch | {length_axis(case): queries if name == "query" else keys})

    tensors, mask = dict(changed(inputs, change).tensors), problem.mask
    named = {"batch": sequences, "queries": queries, "keys": keys}
    sizes = {name: len(index) for name, index in named.items() if index is not None}
    if problem.attention_mask == "causal" and (queries is not None or keys is not None):
        if problem.is_causal:
            tensors["attn_mask"] = _causal_like(tensors["attn_mask"])
        else:
            mask = mask.replace("causal", "bool2d")
    return case.with_problem(**sizes, mask=mask), replace(inputs, tensors=tensors, cotangents={})


def padded(case: Case, inputs: Inputs, count: int) -> Sibling:
    """``count`` further keys at the end, hidden by key_padding_mask; where tokens are queries too, as many queries."""
    problem = case.problem
    device = inputs.tensors["query"].device
    further_queries = count if problem.shares_queries else 0

    def change(name: str, tensor: Tensor) -> Tensor:
        if name == "key_padding_mask":
            return _more_columns(tensor, count, hidden=True)
        if name == "attn_mask":
            wider = _more_columns(tensor, count, hidden=False)
            return _more_columns(wider.mT, further_queries, hidden=False).mT.contiguous()
        if name == "query" and not further_queries:
            return tensor
        axis = length_axis(case)
        shape = [*tensor.shape[:axis], count, *tensor.shape[axis + 1 :]]
        further = FURTHER_STD * torch.randn(shape, generator=torch.Generator().manual_seed(count))
        return torch.cat([tensor, further.to(tensor)], dim=axis)

    tensors = dict(changed(inputs, change).tensors)
    if problem.attention_mask == "causal":
        tensors["attn_mask"] = _causal_like(tensors["attn_mask"])
    mask = problem.mask
    if problem.padding_mask is None:
        # Of the kind of attn_mask: the reference warns of two kinds.
        kind = tensors["attn_mask"].dtype if "attn_mask" in tensors else torch.bool
        batch = () if problem.batch is None else (problem.batch,)
        nothing = torch.zeros(*batch, problem.keys, dtype=kind, device=device)
        tensors["key_padding_mask"] = _more_columns(nothing, count, hidden=True)
        padding = "pad" if kind == torch.bool else "padfloat"
        mask = padding if mask == "none" else f"{mask}+{padding}"
    sizes = {"queries": problem.queries + further_queries, "keys": problem.keys + count}
    return case.with_problem(**sizes, mask=mask), replace(inputs, tensors=tensors, cotangents={})


def _more_columns(mask: Tensor, count: int, *, hidden: bool) -> Tensor:
    """Mask of the reference's polarity with further columns that are hidden, or that it says nothing of."""
    value = hidden if mask.dtype == torch.bool else (-math.inf if hidden else 0.0)
    return torch.cat([mask, mask.new_full((*mask.shape[:-1], count), value)], dim=-1)


def unbatched(case: Case, inputs: Inputs) -> Sibling:
    """A batch of one, without its batch."""

    def change(name: str, tensor: Tensor) -> Tensor:
        if name == "attn_mask":  # (queries, keys), or (heads, queries, keys) in both
            return tensor
        return tensor.squeeze(0 if name == "key_padding_mask" else sequence_axis(case))

    return case.with_problem(batch=None), replace(changed(inputs, change), cotangents={})


def reordered_heads(case: Case, inputs: Inputs, order: Sequence[int]) -> Inputs:
    """Parameters, and a mask for each head, whose head i is head ``order[i]`` of these."""
    heads, embed = case.problem.num_heads, case.problem.embed_dim

    def rows(parameter: Tensor) -> Tensor:
        """Rows that belong to heads, in one or more stacks of embed_dim rows."""
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

    return replace(changed(inputs, change), parameters=parameters)


def outputs_of_heads(case: Case, outputs: Mapping[str, Tensor], order: Sequence[int]) -> dict[str, Tensor]:
    """What these outputs are where the heads stand in another order: the weights of each head follow it."""
    found = dict(outputs)
    if "weights" in found and not case.problem.average_attn_weights:
        found["weights"] = found["weights"][..., list(order), :, :]
    return found


def shared_by_sequences(case: Case, name: str) -> tuple[int, int] | None:
    """Axis of an input along which one part can stand for all, and that part; None: it stays as it is."""
    if name == "attn_mask":
        # A causal mask must stay one; any other one gives its last row to all queries.
        return None if case.problem.attention_mask == "causal" else (0, -1)
    return (0 if name == "key_padding_mask" else sequence_axis(case)), 1


def _causal_like(mask: Tensor) -> Tensor:
    """The causal mask of the same size, true where it hides."""
    return causal(mask.shape[-2], mask.shape[-1], mask.device)
