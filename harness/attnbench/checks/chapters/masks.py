"""Chapter *masks*: hidden tokens have no influence, and equivalent forms of a mask give equal results."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import NUMBER_FORMATS, Case
from attnbench.checks.hidden_rows import compare_rows, find_hidden_tokens
from attnbench.checks.observations import Agree, Observation
from attnbench.checks.requirement import check, draws_dropout, has_tokens, is_eager
from attnbench.masks import additive
from attnbench.records.value_facts import phrase

# Number that overwrites hidden tokens, by dtype. It is far outside the range of the data. It is finite, because 0 × NaN
# is NaN in correct code too. It is smaller in float16, so that projections of overwritten tokens stay below 65504, the
# largest float16 number.
POISON = {dtype: 1e4 if numbers.is_wide else 30.0 for dtype, numbers in NUMBER_FORMATS.items()}
# Input regimes whose logits stay finite in float16 after tokens are overwritten with POISON. Infinite logits would make
# correct code return NaN, by inf − inf.
MODERATE = ("flat", "plain", "peaked", "identity")
# Maps the name of each boolean mask to the name of a float mask of the same shape.
_AS_FLOAT = {
    "bool2d": "float2d", "bool3d": "float3d", "causal": "float2d", "empty2d": "floatempty2d", "empty3d": "float3d",
    "union2d": "float2d", "window2d": "float2d", "pad": "padfloat", "padleft": "padfloat", "padholes": "padfloat",
    "padempty": "padfloat", "padall": "padfloat", "padlast": "padfloat",
}  # fmt: skip
# Constants added to the rows of a float mask: row i gets constant i mod 3. Powers of two keep rounding small.
ROW_CONSTANTS = (0.5, -1.0, 0.25)


def _allows_poison(case: Case) -> bool:
    """Whether a case's output must keep all its bits after a check writes large numbers into hidden tokens."""
    return has_tokens(case) and not draws_dropout(case) and case.compiler is None and case.problem.regime in MODERATE


@check(when=lambda case: case.problem.padding_mask not in (None, "padlowest") and _allows_poison(case))
def padding_cannot_leak(candidate: Candidate) -> Iterator[Observation]:
    """Changing padded tokens changes no bit of the output of real tokens."""
    problem = candidate.case.problem
    padded = _find_padding(candidate)
    names = ("query", "key", "value") if problem.shares_queries else ("key", "value")
    before = candidate.run()["output"].detach().clone()
    with candidate.overwrite({name: _poison(candidate, name, padded) for name in names}):
        after = candidate.run()["output"].detach()
    # If a padded token is also a query, only the rows of real tokens are compared.
    every = ~_make_no_tokens(candidate, problem.queries)
    real = _match_layout(candidate, ~padded if problem.shares_queries else every)
    yield from compare_rows(candidate, after, before, real, phrase("padded_tokens_changed"))


@check(
    when=lambda case: (
        case.problem.attention_mask not in (None, "lowest2d", "lowestrows2d", "floatnegative2d", "floatzerosum2d")
        and not case.problem.has_causal_mask
        and _allows_poison(case)
    )
)
def attn_mask_cannot_leak(candidate: Candidate) -> Iterator[Observation]:
    """Changing the tokens that attn_mask hides from a query changes no bit of that query's output."""
    problem = candidate.case.problem
    visible = candidate.operator.visible(candidate.case, candidate.inputs)
    hidden_keys = (~visible).all(dim=1)  # shape (batch, queries, keys)
    counted = hidden_keys
    if candidate.implementation.policies.hidden_rows == "mean":
        counted = hidden_keys & ~hidden_keys.all(dim=2, keepdim=True)
    row = int(counted.sum(dim=(0, 2)).argmax())  # the query from which most keys are hidden
    hidden = hidden_keys[:, row]
    if problem.shares_queries:
        hidden[:, row] = False
    names = ("query", "key", "value") if problem.shares_queries else ("key", "value")
    before = candidate.run()["output"].detach().clone()
    with candidate.overwrite({name: _poison(candidate, name, hidden) for name in names}):
        after = candidate.run()["output"].detach()
    one = _make_no_tokens(candidate, problem.queries)
    one[:, row] = True
    rows = _match_layout(candidate, one)
    yield from compare_rows(candidate, after, before, rows, phrase("hidden_keys_changed", query=row))


@check(
    when=lambda case: (
        case.problem.has_causal_mask and min(case.problem.queries, case.problem.keys) > 1 and _allows_poison(case)
    )
)
def future_cannot_leak(candidate: Candidate) -> Iterator[Observation]:
    """Under a causal mask, changing later tokens changes no bit of an earlier token's output."""
    problem = candidate.case.problem
    last = min(problem.queries, problem.keys) // 2  # the last query that is compared; it sees keys 0 to last
    future = _make_no_tokens(candidate, problem.keys)
    future[:, last + 1 :] = True
    names = ("query", "key", "value") if problem.shares_queries else ("key", "value")
    before = candidate.run()["output"].detach().clone()
    with candidate.overwrite({name: _poison(candidate, name, future) for name in names}):
        after = candidate.run()["output"].detach()
    past = _make_no_tokens(candidate, problem.queries)
    past[:, : last + 1] = True
    rows = _match_layout(candidate, past)
    yield from compare_rows(candidate, after, before, rows, phrase("later_tokens_changed", last=last))


@check(when=lambda case: is_eager(case) and _has_boolean_mask(case) and case.problem.regime == "plain")
def boolean_equals_float_mask(candidate: Candidate) -> Iterator[Observation]:
    """A boolean mask gives the same output as a float mask of 0 and minus infinity."""
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
        value=candidate.run_on(case, inputs)["output"], expected=candidate.outputs["output"], quantity="output",
        how=phrase("float_masks"),
    )  # fmt: skip


@check(when=lambda case: case.problem.is_causal and is_eager(case))
def causal_hint_changes_nothing(candidate: Candidate) -> Iterator[Observation]:
    """With a causal attn_mask, is_causal=True does not change the output."""
    yield Agree(
        value=candidate.outputs["output"], expected=candidate.call_with_options(is_causal=False)["output"],
        quantity="output", how=phrase("causal_hint"),
    )  # fmt: skip


@check(
    when=lambda case: (
        is_eager(case)
        and str(case.problem.attention_mask).startswith("float")
        and case.dtype in ("float32", "float64")
        and not case.problem.add_bias_kv
        and not case.problem.add_zero_attn
    )
)
def row_constant_changes_nothing(candidate: Candidate) -> Iterator[Observation]:
    """Adding a constant to each row of a float mask does not change the output."""
    mask = candidate.inputs.tensors["attn_mask"].detach()
    constants = mask.new_tensor(ROW_CONSTANTS)[torch.arange(mask.shape[-2]) % len(ROW_CONSTANTS)]
    inputs = replace(candidate.inputs, tensors=candidate.inputs.tensors | {"attn_mask": mask + constants[:, None]})
    yield Agree(
        value=candidate.run_on(candidate.case, inputs)["output"], expected=candidate.outputs["output"],
        quantity="output",
        how=phrase("constants_added_to_mask"),
    )  # fmt: skip


@check(
    when=lambda case: (
        case.problem.padding_mask in ("pad", "padleft", "padholes")
        and is_eager(case)
        and case.problem.regime in MODERATE
    )
)
def nan_behind_a_mask(candidate: Candidate) -> Iterator[Observation]:
    """With NaN in padded tokens, the output of real tokens is unchanged, or NaN if the policies let NaN propagate."""
    problem, padded = candidate.case.problem, _find_padding(candidate)
    names = ("query", "key", "value") if problem.shares_queries else ("key", "value")
    before = candidate.run()["output"].detach().clone()
    with candidate.overwrite({name: _poison(candidate, name, padded, math.nan) for name in names}):
        after = candidate.run()["output"].detach()
    if problem.shares_queries:
        real = _match_layout(candidate, ~padded)
        before, after = before[real], after[real]
    if candidate.implementation.policies.hidden_nan == "propagates":
        after = torch.where(after.isnan(), before, after)
    if candidate.implementation.policies.hidden_rows == "mean":
        hidden = find_hidden_tokens(candidate)
        hidden = hidden[_match_layout(candidate, ~padded)] if problem.shares_queries else hidden
        after = torch.where(hidden[..., None], before, after)
    yield Agree(
        value=after,
        expected=before,
        quantity="output",
        how=phrase("nan_in_padded_tokens"),
    )


def _has_boolean_mask(case: Case) -> bool:
    return any(part in _AS_FLOAT for part in case.problem.mask.split("+"))


def _find_padding(candidate: Candidate) -> Tensor:
    """Return a boolean tensor that is true at padded keys.

    Shape: (batch, keys). Without a batch dimension in the case, batch is 1.
    """
    mask = candidate.inputs.tensors["key_padding_mask"].detach()
    padded = mask if mask.dtype == torch.bool else mask == -math.inf
    return padded[None] if candidate.case.problem.batch is None else padded


def _make_no_tokens(candidate: Candidate, length: int) -> Tensor:
    """Return a boolean tensor of shape (batch, length), false everywhere, on the inputs' device."""
    return candidate.inputs.tensors["query"].new_zeros(candidate.case.problem.sequences, length, dtype=torch.bool)


def _match_layout(candidate: Candidate, tokens: Tensor) -> Tensor:
    """Rearrange a boolean tensor (batch, length) to the layout of the case's inputs.

    Shape of the result: (length,) without a batch dimension, (batch, length) with batch_first=True,
    else (length, batch).
    """
    problem = candidate.case.problem
    if problem.batch is None:
        return tokens[0]
    return tokens if problem.batch_first else tokens.T


def _poison(candidate: Candidate, name: str, tokens: Tensor, number: float | None = None) -> Tensor:
    """Return a copy of the input ``name``, overwritten at the tokens where ``tokens`` is true.

    All features of these tokens get ``number``, with alternating sign. By default, ``number`` is
    the large number in POISON. Shape of ``tokens``: (batch, length).
    """
    tensor = candidate.inputs.tensors[name]
    poison = torch.full_like(tensor, POISON[candidate.case.dtype] if number is None else number).detach()
    poison[..., ::2] *= -1
    return torch.where(_match_layout(candidate, tokens)[..., None], poison, tensor.detach())
