"""Case transforms for metamorphic relations: select sequences, queries or keys, add keys, reorder heads.

``select`` and ``pad`` take a case and its inputs, and return a new case and its inputs. The new inputs have no
cotangents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.attention_core.problem import MASKS, AttentionCoreProblem
from attnbench.oracle.inputs import change_tensors, select_positions

__all__ = [
    "length_axis",
    "pad",
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


def sequence_axis(case: Case) -> int:  # noqa: ARG001
    """Return the batch axis of query, key, value and output."""
    return 0


def length_axis(case: Case) -> int:  # noqa: ARG001
    """Return the axis of query, key, value and output that counts tokens."""
    return 2


def select(
    case: Case, inputs: Inputs, *, sequences: Index = None, queries: Index = None, keys: Index = None
) -> TransformedCase:
    """Return the case with only the sequences, queries or keys at these indices.

    An index may occur several times, and the indices may have any order.
    Causal masks, windows and ALiBi use the positions after the selection.
    """

    def change(name: str, tensor: Tensor) -> Tensor:
        if name == "key_lengths":
            lengths = select_positions(tensor, {0: sequences})
            return lengths if keys is None else lengths.clamp(max=len(keys))
        if name == "bias":
            of_batch = {0: sequences} if tensor.dim() > 2 else {}
            return select_positions(tensor, of_batch | {-2: queries, -1: keys})
        return select_positions(tensor, {0: sequences, 2: queries if name == "query" else keys})

    named = {"sequences": sequences, "queries": queries, "keys": keys}
    sizes = {name: len(index) for name, index in named.items() if index is not None}
    return case.with_problem(**sizes), replace(change_tensors(inputs, change), cotangents={})


def pad(case: Case, inputs: Inputs, count: int) -> TransformedCase:
    """Return the case with ``count`` more keys at the end, which ``key_lengths`` hides."""
    problem: AttentionCoreProblem = case.problem

    def change(name: str, tensor: Tensor) -> Tensor:
        if name in ("query", "key_lengths"):
            return tensor.clone()
        if name == "bias":
            return torch.nn.functional.pad(tensor, (0, count))
        shape = [*tensor.shape[:2], count, tensor.shape[3]]
        further = FURTHER_STD * torch.randn(shape, generator=torch.Generator().manual_seed(count))
        return torch.cat([tensor, further.to(tensor)], dim=2)

    tensors = dict(change_tensors(inputs, change).tensors)
    if "key_lengths" not in tensors:
        tensors["key_lengths"] = torch.full((problem.sequences,), problem.keys, device=tensors["query"].device)
    mask = "+".join(sorted(problem.parts | {"ragged"}, key=MASKS.index))
    return case.with_problem(keys=problem.keys + count, mask=mask), replace(inputs, tensors=tensors, cotangents={})


def reorder_heads(case: Case, inputs: Inputs, order: Sequence[int]) -> Inputs:
    """Return inputs with permuted heads: the new key head i, with its query heads, is the old key head ``order[i]``."""
    of_queries = _expand_to_query_heads(case, order)

    def change(name: str, tensor: Tensor) -> Tensor:
        if tensor.dim() < 4:
            return tensor.clone()
        return select_positions(tensor, {1: order if name in ("key", "value") else of_queries})

    slopes = inputs.options["alibi_slopes"]
    options = inputs.options | {"alibi_slopes": slopes and [slopes[head] for head in of_queries]}
    return replace(change_tensors(inputs, change), options=options)


def reorder_outputs(case: Case, outputs: Mapping[str, Tensor], order: Sequence[int]) -> dict[str, Tensor]:
    """Return the outputs expected after ``reorder_heads``: ``outputs`` with the query heads in the new order."""
    return {name: select_positions(value, {1: _expand_to_query_heads(case, order)}) for name, value in outputs.items()}


def _expand_to_query_heads(case: Case, order: Sequence[int]) -> list[int]:
    """Return the order of query heads that corresponds to an order of key heads."""
    problem: AttentionCoreProblem = case.problem
    share = problem.num_heads // problem.key_heads
    return [head * share + member for head in order for member in range(share)]


def shared_by_sequences(case: Case, name: str) -> tuple[int, int] | None:
    """Return (axis, index) of the slice of an input that the check ``expanded_inputs`` repeats along this axis.

    None means that the check leaves the input ``name`` unchanged.
    """
    if name == "key_lengths":
        return None
    # The bias ``bias2d`` has the shape (queries, keys) and no batch axis: its last row, along axis 0, is repeated for
    # every query. Every other input has the batch axis as axis 0: its sequence 1 is repeated for every sequence.
    return (0, -1) if name == "bias" and case.problem.bias == "bias2d" else (0, 1)
