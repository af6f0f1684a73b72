"""The same problem put otherwise: other sequences, queries or keys, further keys, heads in another order.

Each function takes a case with its inputs and returns a sibling: a case with inputs of its own, without cotangents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.attention_core.problem import MASKS, AttentionCoreProblem
from attnbench.oracle.inputs import changed, picked

__all__ = [
    "length_axis",
    "outputs_of_heads",
    "padded",
    "reordered_heads",
    "selected",
    "sequence_axis",
    "shared_by_sequences",
]

Index = Sequence[int] | None
Sibling = tuple[Case, Inputs]
# Standard deviation of keys and values that are hidden: as large as the others' and more, so that a leak shows.
FURTHER_STD = 4.0


def sequence_axis(case: Case) -> int:  # noqa: ARG001
    """Axis of tokens and output that counts sequences."""
    return 0


def length_axis(case: Case) -> int:  # noqa: ARG001
    """Axis of tokens and output that counts tokens."""
    return 2


def selected(
    case: Case, inputs: Inputs, *, sequences: Index = None, queries: Index = None, keys: Index = None
) -> Sibling:
    """Some sequences, queries or keys, by number, in any order and as often as they are named.

    Masks of positions are those of the places that they then stand at.
    """

    def change(name: str, tensor: Tensor) -> Tensor:
        if name == "key_lengths":
            own = picked(tensor, {0: sequences})
            return own if keys is None else own.clamp(max=len(keys))
        if name == "bias":
            whole = {0: sequences} if tensor.dim() > 2 else {}
            return picked(tensor, whole | {-2: queries, -1: keys})
        return picked(tensor, {0: sequences, 2: queries if name == "query" else keys})

    named = {"sequences": sequences, "queries": queries, "keys": keys}
    sizes = {name: len(index) for name, index in named.items() if index is not None}
    return case.with_problem(**sizes), replace(changed(inputs, change), cotangents={})


def padded(case: Case, inputs: Inputs, count: int) -> Sibling:
    """So many further keys at the end, beyond the keys that each sequence has."""
    problem: AttentionCoreProblem = case.problem

    def change(name: str, tensor: Tensor) -> Tensor:
        if name in ("query", "key_lengths"):
            return tensor.clone()
        if name == "bias":
            return torch.nn.functional.pad(tensor, (0, count))
        shape = [*tensor.shape[:2], count, tensor.shape[3]]
        further = FURTHER_STD * torch.randn(shape, generator=torch.Generator().manual_seed(count))
        return torch.cat([tensor, further.to(tensor)], dim=2)

    tensors = dict(changed(inputs, change).tensors)
    if "key_lengths" not in tensors:
        tensors["key_lengths"] = torch.full((problem.sequences,), problem.keys, device=tensors["query"].device)
    mask = "+".join(sorted(problem.parts | {"ragged"}, key=MASKS.index))
    return case.with_problem(keys=problem.keys + count, mask=mask), replace(inputs, tensors=tensors, cotangents={})


def reordered_heads(case: Case, inputs: Inputs, order: Sequence[int]) -> Inputs:
    """Inputs whose head of keys i, with the queries that share it, is head ``order[i]`` of these."""
    of_queries = _of_queries(case, order)

    def change(name: str, tensor: Tensor) -> Tensor:
        if tensor.dim() < 4:
            return tensor.clone()
        return picked(tensor, {1: order if name in ("key", "value") else of_queries})

    slopes = inputs.options["alibi_slopes"]
    options = inputs.options | {"alibi_slopes": slopes and [slopes[head] for head in of_queries]}
    return replace(changed(inputs, change), options=options)


def outputs_of_heads(case: Case, outputs: Mapping[str, Tensor], order: Sequence[int]) -> dict[str, Tensor]:
    """What these outputs are where the heads stand in another order."""
    return {name: picked(value, {1: _of_queries(case, order)}) for name, value in outputs.items()}


def _of_queries(case: Case, order: Sequence[int]) -> list[int]:
    """Order of heads of queries that goes with one of heads of keys."""
    problem: AttentionCoreProblem = case.problem
    share = problem.num_heads // problem.key_heads
    return [head * share + member for head in order for member in range(share)]


def shared_by_sequences(case: Case, name: str) -> tuple[int, int] | None:
    """Axis of an input along which one part can stand for all, and that part; None: it stays as it is."""
    if name == "key_lengths":
        return None
    # A bias for all sequences gives its last row to all queries.
    return (0, -1) if name == "bias" and case.problem.bias == "bias2d" else (0, 1)
