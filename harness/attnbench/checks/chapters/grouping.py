"""Chapter *grouping*: query heads that share heads of keys and values."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Agree, Observation
from attnbench.checks.requirement import check, has_tokens, is_eager
from attnbench.checks.runs import compare_runs
from attnbench.records.value_facts import phrase

_REGIMES = ("flat", "plain", "peaked")


def _shares(case: Case) -> bool:
    problem = case.problem
    return is_eager(case) and problem.key_heads < problem.num_heads and has_tokens(case) and problem.regime in _REGIMES


@check(when=_shares)
def shared_keys_are_copies(candidate: Candidate) -> Iterator[Observation]:
    """Heads that share keys and values give the same outputs and gradients as heads with their own copies."""
    case, tensors = candidate.case, candidate.inputs.tensors
    shape = (case.problem.key_heads, case.problem.num_heads // case.problem.key_heads)
    copies = {
        name: tensors[name].detach().repeat_interleave(shape[1], dim=1).requires_grad_(tensors[name].requires_grad)
        for name in ("key", "value")
    }
    apart = replace(candidate.inputs, tensors=tensors | copies)
    outputs = candidate.run_on(case.with_problem(kv_heads=None), apart)
    yield from compare_runs(outputs, candidate.outputs, phrase("heads_not_shared"))
    if not case.tracks_inputs:
        return
    found = torch.autograd.grad(
        candidate.compute_loss(outputs), list(copies.values()), materialize_grads=True, allow_unused=True
    )
    for name, gradient in zip(copies, found, strict=True):
        yield Agree(
            value=torch.unflatten(gradient, 1, shape).sum(dim=2), expected=candidate.gradients[f"grad.{name}"],
            quantity=f"grad.{name}",
            how=phrase("summed_over_head_copies"),
        )  # fmt: skip
