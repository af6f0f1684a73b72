"""Comparing fully masked rows apart from other rows, because policies decide what fully masked rows contain."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Equal, Observation
from attnbench.oracle.expected import blank_rows
from attnbench.records.value_facts import Phrase, Rows

__all__ = ["compare_rows", "find_hidden_tokens", "split_hidden_rows"]


def find_hidden_tokens(candidate: Candidate) -> Tensor:
    """Return a boolean tensor, true at the queries whose output row is fully masked in any head.

    Shape: the output's without its last axis.
    """
    output = candidate.inputs.cotangents["output"]
    rows = candidate.operator.hidden_rows(candidate.case, candidate.inputs).get("output")
    found = torch.zeros((), dtype=torch.bool, device=output.device) if rows is None else rows[..., 0]
    return found.expand(output.shape[:-1])


def compare_rows(
    candidate: Candidate, after: Tensor, before: Tensor, rows: Tensor, how: Phrase
) -> Iterator[Observation]:
    """Observe that output rows keep their bits although hidden tokens changed.

    Fully masked rows are compared apart. If the policies declare them to be the mean of all values, they are not
    compared, because hidden tokens then change them.

    Shape: after, before (…, embed_dim); rows (…), true where rows are compared.
    """
    hidden = find_hidden_tokens(candidate)
    seen = rows & ~hidden
    yield Equal(value=after[seen], expected=before[seen], quantity="output", how=how)
    masked = rows & hidden
    if bool(masked.any()) and candidate.implementation.policies.hidden_rows != "mean":
        yield Equal(value=after[masked], expected=before[masked], quantity="output", how=how, rows="masked")


def split_hidden_rows(candidate: Candidate, outputs: Mapping[str, Tensor]) -> Iterator[tuple[dict[str, Tensor], Rows]]:
    """Yield outputs with 0 in fully masked rows, then outputs with 0 in all other rows.

    The second part is left out if no row is fully masked, or if the policies declare fully masked rows to be the mean
    of all values.
    """
    rows = candidate.operator.hidden_rows(candidate.case, candidate.inputs)
    yield blank_rows(outputs, rows), ""
    if rows and candidate.implementation.policies.hidden_rows != "mean":
        yield blank_rows(outputs, {name: ~row for name, row in rows.items()}), "masked"
