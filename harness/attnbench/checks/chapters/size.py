"""Chapter *size*: beyond what 32 bits can count."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Match, Observation
from attnbench.checks.requirement import check, eager
from attnbench.interface import Inputs

# Query-key pairs of a head beyond which a signed 32-bit offset overflows.
PAIRS = 2**31
# Keys from which on a few queries, repeated, make that many pairs.
MANY_KEYS = 32_768


@check(when=lambda case: case.problem.keys >= MANY_KEYS and case.mode == "inference" and eager(case))
def far_offsets(candidate: Candidate) -> Iterator[Observation]:
    """Queries repeated until their pairs with the keys exceed 2³¹ get the same output, to the last one."""
    problem = candidate.case.problem
    times = PAIRS // (problem.queries * problem.keys) + 2
    case = candidate.case.with_problem(queries=problem.queries * times)
    axis = 0 if problem.batch is None or not problem.batch_first else 1
    output = candidate.on(case, _repeated(candidate.inputs, times, axis))["output"]
    for place in (0, (times - 1) * problem.queries):
        yield Match(quantities={"output": output.narrow(axis, place, problem.queries).clone()})


def _repeated(inputs: Inputs, times: int, axis: int) -> Inputs:
    """Inputs whose queries, with their rows of the mask, come many times over."""
    tiled = {"query": torch.cat([inputs.tensors["query"]] * times, dim=axis)}
    if "attn_mask" in inputs.tensors:
        tiled["attn_mask"] = torch.cat([inputs.tensors["attn_mask"]] * times, dim=-2)
    return replace(inputs, tensors=inputs.tensors | tiled)
