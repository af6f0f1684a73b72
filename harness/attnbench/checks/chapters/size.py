"""Chapter *size*: offsets beyond the range of 32 bits."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Match, Observation
from attnbench.checks.requirement import check, is_eager
from attnbench.interface import Inputs

# Number of query-key pairs of one head from which an offset in signed 32-bit integers overflows.
PAIRS = 2**31
# ``far_offsets`` applies only to cases with at least this many keys. The check repeats the queries
# until there are more than PAIRS query-key pairs.
MANY_KEYS = 32_768


@check(when=lambda case: case.problem.keys >= MANY_KEYS and case.mode == "inference" and is_eager(case))
def far_offsets(candidate: Candidate) -> Iterator[Observation]:
    """With queries repeated to over 2³¹ query-key pairs, the first and last repetition give the oracle's output."""
    problem = candidate.case.problem
    times = PAIRS // (problem.queries * problem.keys) + 2
    case = candidate.case.with_problem(queries=problem.queries * times)
    axis = 0 if problem.batch is None or not problem.batch_first else 1
    output = candidate.run_on(case, _repeat_queries(candidate.inputs, times, axis))["output"]
    for place in (0, (times - 1) * problem.queries):
        yield Match(quantities={"output": output.narrow(axis, place, problem.queries).clone()})


def _repeat_queries(inputs: Inputs, times: int, axis: int) -> Inputs:
    """Return inputs with the queries and the rows of attn_mask repeated ``times`` times."""
    tiled = {"query": torch.cat([inputs.tensors["query"]] * times, dim=axis)}
    if "attn_mask" in inputs.tensors:
        tiled["attn_mask"] = torch.cat([inputs.tensors["attn_mask"]] * times, dim=-2)
    return replace(inputs, tensors=inputs.tensors | tiled)
