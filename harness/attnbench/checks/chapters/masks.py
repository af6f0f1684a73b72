"""Chapter *masks*: what is hidden has no influence at all, and what a mask says does not depend on how it says it."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Agree, Equal, Observation
from attnbench.checks.requirement import check, draws_dropout, eager, has_tokens
from attnbench.masks import additive

# Written over hidden tokens: far outside the data, and finite, since 0 × NaN would tell nothing. In float16 its
# projections must stay below 65504.
POISON = {"float64": 1e4, "float32": 1e4, "bfloat16": 1e4, "float16": 30.0}
# Regimes whose logits leave room for the poison in float16: there inf − inf would be NaN.
MODERATE = ("flat", "plain", "peaked", "identity")
# A boolean mask's name to that of a float mask of the same shape.
_AS_FLOAT = {
    "bool2d": "float2d", "bool3d": "float3d", "causal": "float2d", "empty2d": "floatempty2d", "empty3d": "float3d",
    "union2d": "float2d", "pad": "padfloat", "padempty": "padfloat",
}  # fmt: skip
# Added to the rows of a float mask in turn; powers of two keep the sum's rounding small.
ROW_CONSTANTS = (0.5, -1.0, 0.25)


def _hides(case: Case) -> bool:
    return has_tokens(case) and not draws_dropout(case) and case.compiler is None and case.problem.regime in MODERATE


@check(when=lambda case: case.problem.padding_mask in ("pad", "padfloat", "padempty") and _hides(case))
def padding_cannot_leak(candidate: Candidate) -> Iterator[Observation]:
    """Values of padded tokens change no bit of the output of a real token."""
    problem = candidate.case.problem
    padded = _padded(candidate)
    names = ("query", "key", "value") if problem.shares_queries else ("key", "value")
    before = candidate.run()["output"].detach().clone()
    with candidate.overwritten({name: _poisoned(candidate, name, padded) for name in names}):
        after = candidate.run()["output"].detach()
    if problem.shares_queries:
        # A padded token is a query too: only rows of real tokens are compared.
        real = _tokens_first(candidate, ~padded)
        before, after = before[real], after[real]
    yield Equal(value=after, expected=before, what="output of real tokens after padded tokens changed")


@check(when=lambda case: case.problem.attention_mask not in (None, "causal", "lowest2d") and _hides(case))
def attn_mask_cannot_leak(candidate: Candidate) -> Iterator[Observation]:
    """Values of the keys that attn_mask hides from a query change no bit of that query's output."""
    problem = candidate.case.problem
    visible = candidate.operator.visible(candidate.case, candidate.inputs)
    row = int((~visible).all(dim=1).sum(dim=(0, 2)).argmax())  # the query from which most keys are hidden
    hidden = (~visible).all(dim=1)[:, row]  # (batch, keys)
    if problem.shares_queries:
        hidden[:, row] = False
    names = ("query", "key", "value") if problem.shares_queries else ("key", "value")
    before = candidate.run()["output"].detach().clone()
    with candidate.overwritten({name: _poisoned(candidate, name, hidden) for name in names}):
        after = candidate.run()["output"].detach()
    one = torch.zeros(problem.sequences, problem.queries, dtype=torch.bool)
    one[:, row] = True
    rows = _tokens_first(candidate, one)
    yield Equal(value=after[rows], expected=before[rows], what=f"output of query {row} after hidden keys changed")


@check(
    when=lambda case: (
        case.problem.attention_mask == "causal" and min(case.problem.queries, case.problem.keys) > 1 and _hides(case)
    )
)
def future_cannot_leak(candidate: Candidate) -> Iterator[Observation]:
    """Under a causal mask, later tokens change no bit of an earlier token's output."""
    problem = candidate.case.problem
    last = min(problem.queries, problem.keys) // 2  # the last query that is compared; it sees keys 0 to last
    future = torch.zeros(problem.sequences, problem.keys, dtype=torch.bool)
    future[:, last + 1 :] = True
    names = ("query", "key", "value") if problem.shares_queries else ("key", "value")
    before = candidate.run()["output"].detach().clone()
    with candidate.overwritten({name: _poisoned(candidate, name, future) for name in names}):
        after = candidate.run()["output"].detach()
    past = torch.zeros(problem.sequences, problem.queries, dtype=torch.bool)
    past[:, : last + 1] = True
    rows = _tokens_first(candidate, past)
    yield Equal(value=after[rows], expected=before[rows], what=f"output of tokens 0 to {last} after later ones changed")


@check(when=lambda case: eager(case) and _boolean(case) and case.problem.regime == "plain")
def boolean_equals_float_mask(candidate: Candidate) -> Iterator[Observation]:
    """A boolean mask gives what a float mask of 0 and minus infinity gives."""
    mask = "+".join(_AS_FLOAT.get(part, part) for part in candidate.case.problem.mask.split("+"))
    dtype = candidate.inputs.tensors["query"].dtype
    masks = {
        name: additive(~tensor, dtype)
        for name, tensor in candidate.inputs.tensors.items()
        if name.endswith("mask") and tensor.dtype == torch.bool
    }
    case = candidate.case.with_problem(mask=mask, is_causal=False)
    options = candidate.inputs.options | {"is_causal": False}
    inputs = replace(candidate.inputs, tensors=candidate.inputs.tensors | masks, options=options)
    yield Agree(
        value=candidate.on(case, inputs)["output"], expected=candidate.outputs["output"], quantity="output",
        what="the output under float masks, against that under boolean ones",
    )  # fmt: skip


@check(when=lambda case: case.problem.is_causal and eager(case))
def causal_hint_changes_nothing(candidate: Candidate) -> Iterator[Observation]:
    """The hint is_causal=True beside a causal mask changes no result."""
    yield Agree(
        value=candidate.outputs["output"], expected=candidate.like(is_causal=False)["output"], quantity="output",
        what="the output with the hint, against that without it",
    )  # fmt: skip


@check(
    when=lambda case: (
        eager(case)
        and str(case.problem.attention_mask).startswith("float")
        and case.dtype in ("float32", "float64")
        and not case.problem.add_bias_kv
        and not case.problem.add_zero_attn
    )
)
def row_constant_changes_nothing(candidate: Candidate) -> Iterator[Observation]:
    """A constant added to a row of a float mask changes nothing."""
    mask = candidate.inputs.tensors["attn_mask"].detach()
    constants = mask.new_tensor(ROW_CONSTANTS)[torch.arange(mask.shape[-2]) % len(ROW_CONSTANTS)]
    inputs = replace(candidate.inputs, tensors=candidate.inputs.tensors | {"attn_mask": mask + constants[:, None]})
    yield Agree(
        value=candidate.on(candidate.case, inputs)["output"], expected=candidate.outputs["output"], quantity="output",
        what="the output with constants added to the rows of the mask",
    )  # fmt: skip


@check(when=lambda case: case.problem.padding_mask == "pad" and eager(case) and case.problem.regime in MODERATE)
def nan_behind_a_mask(candidate: Candidate) -> Iterator[Observation]:
    """NaN in a padded token shows as NaN or not at all, never as a wrong number; not at all where that is declared."""
    problem, padded = candidate.case.problem, _padded(candidate)
    names = ("query", "key", "value") if problem.shares_queries else ("key", "value")
    before = candidate.run()["output"].detach().clone()
    with candidate.overwritten({name: _poisoned(candidate, name, padded, math.nan) for name in names}):
        after = candidate.run()["output"].detach()
    if problem.shares_queries:
        real = _tokens_first(candidate, ~padded)
        before, after = before[real], after[real]
    if candidate.implementation.policies.hidden_nan == "propagates":
        after = torch.where(after.isnan(), before, after)
    yield Agree(value=after, expected=before, quantity="output", what="output of real tokens beside NaN in padded ones")


def _boolean(case: Case) -> bool:
    return any(part in _AS_FLOAT for part in case.problem.mask.split("+"))


def _padded(candidate: Candidate) -> Tensor:
    """Which tokens are padding: (batch, keys)."""
    mask = candidate.inputs.tensors["key_padding_mask"].detach()
    padded = mask if mask.dtype == torch.bool else mask == -math.inf
    return padded[None] if candidate.case.problem.batch is None else padded


def _tokens_first(candidate: Candidate, tokens: Tensor) -> Tensor:
    """Tokens (batch, length) as the first dimensions of the problem's own layout."""
    problem = candidate.case.problem
    if problem.batch is None:
        return tokens[0]
    return tokens if problem.batch_first else tokens.T


def _poisoned(candidate: Candidate, name: str, tokens: Tensor, number: float | None = None) -> Tensor:
    """A tensor whose chosen tokens hold a large number of alternating sign, or the given one."""
    tensor = candidate.inputs.tensors[name]
    poison = torch.full_like(tensor, POISON[candidate.case.dtype] if number is None else number).detach()
    poison[..., ::2] *= -1
    return torch.where(_tokens_first(candidate, tokens)[..., None], poison, tensor.detach())
