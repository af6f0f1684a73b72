"""Chapter *weights*: the attention weights that a call with need_weights=True returns."""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnbench.analysis.deviations import make_deviation
from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Agree, Equal, Holds, Match, Observation, RowSum
from attnbench.checks.requirement import check, is_eager
from attnbench.oracle.error_budget import allowed_row_sum_error
from attnbench.records.value_facts import Rows, phrase


@check()
def weights_only_on_request(candidate: Candidate) -> Iterator[Observation]:
    """Weights are returned if and only if need_weights is True."""
    asked, given = candidate.case.problem.need_weights, "weights" in candidate.outputs
    yield Holds(holds=asked == given, violation=phrase("weights_missing" if asked else "weights_unrequested"))


@check(when=lambda case: case.problem.need_weights and is_eager(case))
def weights_parity(candidate: Candidate) -> Iterator[Observation]:
    """The returned weights, per head or averaged over heads, equal the oracle's within the error budget."""
    if "weights" in candidate.outputs:
        yield Match(quantities={"weights": candidate.outputs["weights"]})


@check(when=lambda case: case.problem.need_weights and case.problem.mask != "none")
def weights_of_hidden_keys_are_zero(candidate: Candidate) -> Iterator[Observation]:
    """The weight of every hidden key is exactly zero."""
    if "weights" not in candidate.outputs:
        return
    problem = candidate.case.problem
    weights = candidate.outputs["weights"][..., : problem.keys].detach()
    visible = candidate.operator.visible(candidate.case, candidate.inputs)
    if problem.average_attn_weights:
        visible = visible.any(dim=1)
    visible = visible[0] if problem.batch is None else visible
    if weights.shape != visible.shape or not weights.numel():  # weights_parity reports a wrong shape
        return
    masked_rows = _find_masked_rows(weights[..., 0], candidate)[..., None]
    hidden = weights[~visible & ~masked_rows]
    yield Equal(value=hidden, expected=torch.zeros_like(hidden), quantity="weights", how=phrase("hidden_keys"))
    if candidate.implementation.policies.hidden_rows == "zero":
        hidden = weights[~visible & masked_rows]
        yield Equal(
            value=hidden,
            expected=torch.zeros_like(hidden),
            quantity="weights",
            how=phrase("hidden_keys"),
            rows="masked",
        )


@check(when=lambda case: case.problem.need_weights and case.differentiates and _has_elements(case))
def weights_carry_gradients(candidate: Candidate) -> Iterator[Observation]:
    """Returned weights are part of the graph, unless the policies declare detached_weights."""
    if "weights" not in candidate.outputs:
        return
    policies, detached = candidate.implementation.policies, not candidate.outputs["weights"].requires_grad
    yield Holds(
        holds=detached == policies.detached_weights,
        violation=phrase("weights_detached" if detached else "weights_tracked"),
        deviation=make_deviation(policies, detached_weights=detached),
    )


def _has_elements(case: Case) -> bool:
    """Whether the weights of a case have any element."""
    problem = case.problem
    return bool(min(problem.sequences, problem.queries, problem.columns) > 0)


@check(when=lambda case: case.problem.need_weights and is_eager(case) and case.problem.columns > 0)
def weights_are_shares(candidate: Candidate) -> Iterator[Observation]:
    """Weights are not negative, and each row of weights sums to one; a fully masked row may sum to zero."""
    if "weights" not in candidate.outputs:
        return
    weights = candidate.outputs["weights"].detach().double()
    smallest = float(weights.nan_to_num().amin()) if weights.numel() else 0.0
    yield Holds(holds=smallest >= 0, violation=phrase("negative_weight", smallest=smallest))
    off = _measure_sum_errors(weights.sum(dim=-1), candidate)
    masked_rows = _find_masked_rows(off, candidate)
    allowed = allowed_row_sum_error(candidate.precision, candidate.case.problem.columns)
    parts: tuple[tuple[Tensor, Rows], ...] = ((~masked_rows, ""), (masked_rows, "masked"))
    for part, rows in parts:
        worst = float(off[part].max()) if bool(part.any()) else 0.0
        yield RowSum(quantity="weights", off=worst, allowed=allowed, rows=rows)


def _find_masked_rows(sums: Tensor, candidate: Candidate) -> Tensor:
    """Return a boolean tensor of the shape of ``sums``, true in fully masked rows."""
    rows = candidate.operator.hidden_rows(candidate.case, candidate.inputs)
    if "weights" not in rows:
        return torch.zeros_like(sums, dtype=torch.bool)
    return rows["weights"].expand(*sums.shape, 1)[..., 0]  # type: ignore[no-any-return]


def _measure_sum_errors(sums: Tensor, candidate: Candidate) -> Tensor:
    """Return the absolute error of the sum of each row of weights.

    A row must sum to 1. There are two exceptions: fully masked rows and, under the policy
    ``padded_queries="own"``, the rows of padded queries. Each head's sum of such a row may be any
    integer. Therefore the sum of weights averaged over heads may be any multiple of 1 / heads.
    If the policies declare NaN in fully masked rows, the error of these rows is 0.
    """
    heads = candidate.case.problem.num_heads if candidate.case.problem.average_attn_weights else 1
    with_keys = ~_find_masked_rows(sums, candidate)
    if candidate.implementation.policies.hidden_rows == "nan":
        sums = torch.where(with_keys, sums, 0.0)
    if candidate.implementation.policies.padded_queries == "own":
        padded = candidate.operator.padded_rows(candidate.case, candidate.inputs)
        if "weights" in padded:
            with_keys &= ~padded["weights"].expand(*sums.shape, 1)[..., 0]
    expected = torch.where(with_keys, 1.0, (sums * heads).round() / heads)
    return (sums - expected).abs().nan_to_num(torch.inf)


@check(when=lambda case: case.problem.need_weights and is_eager(case))
def weights_change_no_output(candidate: Candidate) -> Iterator[Observation]:
    """Requesting the weights does not change the output."""
    without = candidate.call_with_options(need_weights=False, average_attn_weights=False)
    yield Agree(
        value=without["output"], expected=candidate.outputs["output"], quantity="output",
        how=phrase("without_weights"),
    )  # fmt: skip


@check(when=lambda case: case.problem.average_attn_weights and case.problem.need_weights and is_eager(case))
def average_is_the_mean_of_heads(candidate: Candidate) -> Iterator[Observation]:
    """Averaged weights are the mean of the weights of all heads."""
    if "weights" not in candidate.outputs:
        return
    each = candidate.call_with_options(average_attn_weights=False)["weights"]
    yield Agree(
        value=candidate.outputs["weights"], expected=each.mean(dim=-3), quantity="weights",
        how=phrase("averaged"),
    )  # fmt: skip
