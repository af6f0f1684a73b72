"""Tests of verdicts: what is compared, in which order, and what the user reads."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.cases import DTYPES, Case, Dtype
from attnbench.checks.evaluation.verdict import evaluate
from attnbench.checks.observations import Agree, Average, Equal, Exact, Holds, Match, Observation, Scale
from attnbench.interface import Axis, Inputs, Policies, Work
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.generate_cases import PROBE
from attnbench.operators.multihead.suites import CROSS
from attnbench.oracle.error_budget import Allowance
from attnbench.oracle.expected import CaseOracle, Expected
from attnbench.records.types import Finding

INF, NAN = math.inf, math.nan
# Allowed: 4 × 0.25 = 1.
ALLOWANCE = Allowance(model=0.25, yardstick=0.125, factor=4.0, floor=1e-45)
ORIGIN = "4 × the larger of the rounding model's error 0.25 and the reference's own 0.125"
# Shape (2, 3); its second row is one from which every key is hidden.
EXPECTED = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
HIDDEN = torch.tensor([[False], [True]])
CASE = Case(operator="multihead", problem=CROSS)


class Plain:
    """An operator that knows nothing but what is asked of it here."""

    def axes(self, case: Case, quantity: str) -> Sequence[Axis]:
        """Two dimensions without a meaning of their own."""
        return ()

    def fault_models(self, case: Case, quantities: Any) -> Mapping[str, Any]:
        """None is known."""
        return {}

    def work(self, case: Case) -> Work:
        """Next to none."""
        return Work(flop=0, pairs=6)


class Stated(CaseOracle):
    """What is known where it is stated beforehand."""

    def __init__(self, truth: Expected, given: Callable[[Tensor], Expected] | None = None, case: Case = CASE) -> None:
        nothing = Inputs(parameters={}, tensors={})
        super().__init__(case, Plain(), case.dtype, lambda: nothing, expected=truth)  # type: ignore[arg-type]
        self._given = given

    @property
    def outputs_all_dropped(self) -> dict[str, Tensor]:  # type: ignore[override]
        """Nothing is left where everything is dropped."""
        return {name: torch.zeros_like(value) for name, value in self.expected.quantities.items()}

    def compute_with_dropout(self, keep: Tensor) -> Expected:
        """What was stated for a dropout mask."""
        assert self._given is not None, "no dropout here"
        return self._given(keep)


def truth(expected: Tensor = EXPECTED) -> Expected:
    """Oracle that says ``expected``."""
    return Expected(quantities={"output": expected}, allowances={"output": ALLOWANCE}, hidden_rows={"output": HIDDEN})


def told(
    *observations: Observation, of: Expected | None = None, known: CaseOracle | None = None, **policies: Any
) -> Finding:
    """Finding of a check whose requirement is one word."""
    return evaluate("a_check", "Needed.", list(observations), known or Stated(of or truth()), Policies(**policies))


def output(values: Any, dtype: torch.dtype = torch.float32) -> Match:
    """Claim that the output is these numbers."""
    return Match(quantities={"output": torch.tensor(values, dtype=dtype)})


def same(value: Any, expected: Any) -> Equal:
    """Claim that two tensors are the same bits."""
    return Equal(value=torch.as_tensor(value), expected=torch.as_tensor(expected), what="x")


# Against the oracle


def test_an_error_within_the_allowance_passes_with_its_numbers() -> None:
    """The largest error and what was allowed are kept."""
    assert told(output([[1.0, 2.0, 3.25], [0.0, 0.0, 0.125]])) == Finding(
        check="a_check", status="passed", measured=0.25, allowed=1.0
    )


def test_an_error_beyond_half_of_the_allowance_is_noted() -> None:
    """It passes with a warning; exactly what is allowed passes too."""
    assert told(output([[1.0, 2.0, 3.5], [0.0, 0.0, 0.0]])).warnings == ()
    assert told(output([[1.0, 2.0, 3.75], [0.0, 0.0, 0.0]])).warnings == ("uses 75% of the error allowed",)
    at_limit = told(output([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]]))
    assert (at_limit.status, at_limit.warnings) == ("passed", ("uses 100% of the error allowed",))


def test_wrong_values_are_told_by_count_share_and_the_worst() -> None:
    """The message gives the worst element, where it is, and where the bound comes from."""
    found = told(output([[1.0, 4.5, 3.5], [0.0, -1.5, 0.0]]))
    assert found == Finding(
        check="a_check",
        status="failed",
        reason="Needed. But 2 of 6 elements (33.3%) of output are off; the worst by 2.5 at index (0, 1) "
        f"(4.5, must be 2); allowed 1 = {ORIGIN}.",
        measured=2.5,
        allowed=1.0,
    )


def test_shape_is_judged_before_values() -> None:
    """A wrong shape is told as such, even where it would broadcast."""
    found = told(output([[1.0, 2.0, 3.0]]))
    assert found.reason == "Needed. But output has shape (1, 3), must be (2, 3)."
    assert (found.measured, found.allowed) == (None, None)


def test_dtype_is_judged_before_values() -> None:
    """The right numbers in another precision are wrong."""
    found = told(output(EXPECTED.tolist(), dtype=torch.float64))
    assert found.reason == "Needed. But output has dtype float64, must be float32."


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        (
            [[1.0, NAN, 99.0], [0.0, INF, 0.0]],
            "But output is nan at index (0, 1), must be 2 (2 of 6 elements (33.3%) differ in NaN or infinity).",
        ),
        (
            [[1.0, 2.0, -INF], [0.0, 0.0, 0.0]],
            "But output is -inf at index (0, 2), must be 3 (1 of 6 elements (16.7%) differ in NaN or infinity).",
        ),
    ],
)
def test_nan_and_infinity_are_judged_before_values(values: Any, fault: str) -> None:
    """The first one is told with its place, however far off other elements are."""
    assert told(output(values)).reason == f"Needed. {fault}"


def test_nan_and_infinity_must_be_where_the_oracle_has_them() -> None:
    """A finite number in the place of a NaN is wrong, and so is an infinity; a NaN there is right."""
    expected = torch.tensor([[1.0, NAN, 3.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert told(output([[1.0, NAN, 3.0], [0.0, 0.0, 0.0]]), of=truth(expected=expected)).status == "passed"
    for wrong in (2.0, INF):
        found = told(output([[1.0, wrong, 3.0], [0.0, 0.0, 0.0]]), of=truth(expected=expected))
        assert found.reason.startswith(f"Needed. But output is {wrong:g} at index (0, 1), must be nan")


def test_an_infinity_of_the_other_sign_is_wrong() -> None:
    """Where the oracle is infinite, the sign counts."""
    expected = torch.tensor([[1.0, 2.0, INF], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert told(output([[1.0, 2.0, INF], [0.0, 0.0, 0.0]]), of=truth(expected=expected)).status == "passed"
    assert told(output([[1.0, 2.0, -INF], [0.0, 0.0, 0.0]]), of=truth(expected=expected)).status == "failed"


def test_what_the_case_does_not_have_is_a_fault() -> None:
    """A quantity that the oracle does not know is no match for anything."""
    found = told(Match(quantities={"weights": torch.zeros(1)}))
    assert found.reason == "Needed. But the call returned weights, which this case does not have."


def test_empty_tensors_match() -> None:
    """Nothing is off where there is nothing."""
    empty = torch.zeros(0, 3, dtype=torch.float64)
    plain = Expected(quantities={"output": empty}, allowances={"output": ALLOWANCE}, hidden_rows={})
    assert told(Match(quantities={"output": empty.float()}), of=plain).status == "passed"


def test_a_dropout_mask_is_handed_to_the_oracle() -> None:
    """With a mask, the values are compared with what the oracle gives under that very mask."""
    keep, under = torch.tensor([True, False]), torch.full_like(EXPECTED, 7.0)

    def given(mask: Tensor) -> Expected:
        assert mask is keep
        return truth(expected=under)

    dropped = Match(quantities={"output": under.float()}, keep=keep)
    known = Stated(truth(), given)
    assert told(dropped, known=known).status == "passed"
    assert told(Match(quantities={"output": under.float()}), known=known).status == "failed"


@pytest.mark.parametrize(
    ("mode", "dtype", "status"),
    [
        ("autocast", torch.float32, "passed"),
        ("autocast", torch.bfloat16, "failed"),
        ("train", torch.float32, "failed"),
        ("train", torch.bfloat16, "passed"),
    ],
)
def test_a_gradient_has_the_dtype_of_what_it_belongs_to(mode: Any, dtype: torch.dtype, status: str) -> None:
    """Under autocast, inputs and parameters are float32, and so are their gradients; the output is narrower."""
    case = CASE.with_fields(dtype="bfloat16", mode=mode)
    stated = Expected(
        quantities={"output": EXPECTED, "grad.query": EXPECTED},
        allowances={"output": ALLOWANCE, "grad.query": ALLOWANCE},
        hidden_rows={},
    )
    known = Stated(stated, case=case)
    assert told(Match(quantities={"grad.query": EXPECTED.to(dtype)}), known=known).status == status
    assert told(Match(quantities={"output": EXPECTED.bfloat16()}), known=known).status == "passed"
    assert told(Match(quantities={"output": EXPECTED.float()}), known=known).reason == (
        "Needed. But output has dtype float32, must be bfloat16."
    )


def test_a_dtype_that_the_contract_leaves_open_may_be_any() -> None:
    """Where the claim says so, only values are judged."""
    free = Match(quantities={"output": EXPECTED.double()}, any_dtype=True)
    assert told(free).status == "passed"


def test_wrong_elements_are_told_by_what_they_share() -> None:
    """With the axes known, the worst is told in words, and so is the row that all wrong elements are in."""
    expected = torch.zeros(4, 8, dtype=torch.float64)

    class Worded(Plain):
        def axes(self, case: Case, quantity: str) -> Sequence[Axis]:
            return [
                Axis(dimension=0, word="query", positions=range(4)),
                Axis(dimension=1, word="feature", positions=range(8)),
            ]

    known = Stated(replace(truth(expected), hidden_rows={}))
    known.operator = Worded()  # type: ignore[assignment]
    value = torch.zeros(4, 8)
    value[2] = 3.0
    value[2, 5] = 4.0
    assert told(Match(quantities={"output": value}), known=known).reason == (
        "Needed. But 8 of 32 elements (25.0%) of output are off, all in query 2; "
        f"the worst by 4 at query 2, feature 5 (4, must be 0); allowed 1 = {ORIGIN}."
    )
    value[2] = NAN
    assert told(Match(quantities={"output": value}), known=known).reason == (
        "Needed. But output is nan at query 2, feature 0, must be 0 "
        "(8 of 32 elements (25.0%) differ in NaN or infinity, all in query 2)."
    )


# Exactly the oracle's


def test_what_must_be_exact_is_the_oracle_rounded_once() -> None:
    """The oracle's numbers in the case's dtype, and nothing beside them."""
    third = EXPECTED / 3
    assert told(Exact(quantities={"output": third.float()}), of=truth(third)).status == "passed"
    off = third.float()
    off[0, 1] = torch.nextafter(off[0, 1], torch.tensor(1.0))
    assert told(Exact(quantities={"output": off}), of=truth(third)).reason == (
        "Needed. But 1 of 6 elements (16.7%) of output differ, the first at index (0, 1): "
        "0.666667, must be exactly 0.666667."
    )
    assert told(Exact(quantities={"output": third.double()}), of=truth(third)).reason == (
        "Needed. But output has shape (2, 3) and dtype float64, must be (2, 3) and float32."
    )


# As a whole


@pytest.fixture(scope="module")
def probed() -> Callable[[Dtype], CaseOracle]:
    """What is known of the case that probes take, in a dtype."""

    @cache
    def known(dtype: Dtype) -> CaseOracle:
        case = Case(operator="multihead", problem=PROBE, dtype=dtype)
        return CaseOracle(case, OPERATOR, dtype, lambda: OPERATOR.inputs(case))

    return known


def of_scale(known: CaseOracle, factor: float) -> dict[str, Tensor]:
    """The oracle's quantities, rounded once, with another softmax scale."""
    found = OPERATOR.evaluate(known.case, OPERATOR.scale_logits(known.case, known.exact_inputs, factor))
    return {name: value.to(known.dtype) for name, value in found.items()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scale_that_is_one_percent_off_is_seen_in_every_dtype(
    probed: Callable[[Dtype], CaseOracle], dtype: Dtype
) -> None:
    """Though no element is off by more than its rounding may cost, in bfloat16; the right one passes."""
    known = probed(dtype)
    right, wrong = of_scale(known, 1.0)["output"], of_scale(known, 1.01)["output"]
    assert told(Scale(quantity="output", value=right), known=known).status == "passed"
    found = told(Scale(quantity="output", value=wrong), known=known)
    assert found.reason.startswith("Needed. But the softmax scale estimated from output is off by +0.0")
    assert found.measured == pytest.approx(0.01, rel=0.1)
    if dtype == "bfloat16":
        assert told(Match(quantities={"output": wrong}), known=known).status == "passed"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["grad.query", "grad.key", "grad.value"])
def test_a_gradient_that_is_three_percent_off_is_seen_in_every_dtype(
    probed: Callable[[Dtype], CaseOracle], name: str, dtype: Dtype
) -> None:
    """Its amplitude tells, or the scale that it seems to have; the right one passes."""
    known = probed(dtype)
    right = of_scale(known, 1.0)[name]
    assert told(Scale(quantity=name, value=right), known=known).status == "passed"
    found = told(Scale(quantity=name, value=1.03 * right), known=known)
    assert found.status == "failed"
    assert f" estimated from {name} is off by +0.0" in found.reason


def test_what_shows_no_scale_passes_and_a_nan_does_not(probed: Callable[[Dtype], CaseOracle]) -> None:
    """One key gets all there is, whatever the scale; a NaN is no scale at all, and another shape is told as such."""
    single = Case(operator="multihead", problem=replace(PROBE, keys=1), dtype="float32")
    known = CaseOracle(single, OPERATOR, "float32", lambda: OPERATOR.inputs(single))
    assert "softmax scale" not in known.find_probes("output")
    assert told(Scale(quantity="output", value=of_scale(known, 2.0)["output"]), known=known).status == "passed"
    value = of_scale(probed("float32"), 1.0)["output"]
    assert told(Scale(quantity="output", value=value[:1]), known=probed("float32")).reason == (
        "Needed. But output has shape (1, 33, 21), must be (4, 33, 21)."
    )
    value[0, 0, 0] = NAN
    assert told(Scale(quantity="output", value=value), known=probed("float32")).status == "failed"


# Rows without a key


NAN_ROW = [[1.0, 2.0, 3.0], [NAN, NAN, NAN]]


def test_nan_in_a_row_without_keys_is_accepted_where_it_is_declared() -> None:
    """The policy hidden_rows='nan' makes NaN right on those rows, and zero wrong."""
    assert told(output(NAN_ROW), hidden_rows="nan").status == "passed"
    assert told(output(EXPECTED.tolist()), hidden_rows="nan").reason == (
        "Needed. But output is 0 at index (1, 0), must be nan (3 of 6 elements (50.0%) differ in NaN or infinity)."
    )


def test_nan_in_a_row_without_keys_is_wrong_where_it_is_not_declared() -> None:
    """By the contract such a row gets zero attention."""
    assert told(output(NAN_ROW)).reason == (
        "Needed. But output is nan at index (1, 0), must be 0 (3 of 6 elements (50.0%) differ in NaN or infinity)."
    )


def test_the_policy_excuses_no_other_row() -> None:
    """A NaN in a row that has keys fails under every policy."""
    assert told(output([[1.0, NAN, 3.0], [NAN, NAN, NAN]]), hidden_rows="nan").reason == (
        "Needed. But output is nan at index (0, 1), must be 2 (1 of 6 elements (16.7%) differ in NaN or infinity)."
    )


# The same bits


def test_nan_equals_itself() -> None:
    """Two tensors with NaN in the same place are the same bits."""
    assert told(same([1.0, NAN, INF], [1.0, NAN, INF])) == Finding(
        check="a_check", status="passed", measured=0.0, allowed=0.0
    )


def test_a_difference_of_bits_is_told_by_the_first() -> None:
    """The message counts what differs and gives the first place; the number kept is the largest difference."""
    assert told(same([[1.0, 2.5], [3.0, 9.0]], [[1.0, 2.0], [3.0, 4.0]])) == Finding(
        check="a_check",
        status="failed",
        reason="Needed. But 2 of 4 elements (50.0%) of x differ, the first at index (0, 1): 2.5, must be exactly 2.",
        measured=5.0,
        allowed=0.0,
    )


@pytest.mark.parametrize(
    ("value", "expected", "words"),
    [
        ([NAN, 1.0], [2.0, 1.0], "nan, must be exactly 2"),
        ([2.0, 1.0], [NAN, 1.0], "2, must be exactly nan"),
        ([True, False], [False, False], "1, must be exactly 0"),
    ],
)
def test_a_nan_beside_a_number_differs(value: Any, expected: Any, words: str) -> None:
    """NaN equals nothing but itself; booleans are compared too."""
    assert told(same(value, expected)).reason == (
        f"Needed. But 1 of 2 elements (50.0%) of x differ, the first at index (0,): {words}."
    )


def test_equal_tensors_have_the_same_shape_and_dtype() -> None:
    """Equal numbers in another shape or precision are not the same bits."""
    for value, came in (
        (torch.ones(1, 2), "(1, 2) and dtype float32"),
        (torch.ones(2, dtype=torch.float64), "(2,) and dtype float64"),
    ):
        assert told(same(value, torch.ones(2))).reason == f"Needed. But x has shape {came}, must be (2,) and float32."


def test_empty_tensors_are_the_same_bits() -> None:
    """Where nothing is padded, no padded weight differs."""
    assert told(same(torch.zeros(0), torch.zeros(0))).status == "passed"


# Two runs


def test_two_runs_agree_within_twice_the_allowance() -> None:
    """Each of them may be off."""

    def agree(value: float) -> Finding:
        return told(
            Agree(value=torch.tensor([value]), expected=torch.tensor([1.0]), quantity="output", what="the second run")
        )

    assert (agree(3.0).status, agree(3.0).measured, agree(3.0).allowed) == ("passed", 2.0, 2.0)
    assert agree(3.5).reason == (
        "Needed. But 1 of 1 elements (100.0%) of the second run are off; the worst by 2.5 at index (0,) "
        f"(3.5, must be 1); allowed 2 = twice {ORIGIN}."
    )


# The mean of draws


def average(mean: Tensor, std: float = 3.0) -> Average:
    """Claim about the mean of nine draws, whose standard error is a third of ``std``."""
    return Average(quantity="output", mean=mean, std=torch.full_like(mean, std), draws=9)


def test_a_mean_within_eight_standard_errors_passes() -> None:
    """What rounding may cost is subtracted first: 9 off, 1 allowed, standard error 1, are 8 standard errors."""
    found = told(average(EXPECTED + torch.tensor([9.0, 0.0, 0.0])))
    assert (found.status, found.measured, found.allowed) == ("passed", 8.0, 8.0)


def test_a_mean_further_off_fails_with_its_place() -> None:
    """The message tells by how many standard errors, and where."""
    found = told(average(EXPECTED + torch.tensor([0.0, 0.0, 12.0])))
    assert found.reason == (
        "Needed. But the mean of 9 draws of output is 11.0 standard errors off at index (0, 2); allowed 8."
    )
    assert (found.measured, found.allowed) == (11.0, 8.0)


def test_draws_that_are_all_the_same_are_no_draws() -> None:
    """Where nothing varies, nothing was dropped, however right the mean is."""
    assert told(average(EXPECTED, std=0.0)).reason == ("Needed. But 9 draws gave the same output: nothing was dropped.")


ROWS, TERMS, RATE, DRAWS = 12, 6, 0.25, 256


def drawn_mean(seed: int, factor: float = 1.0) -> tuple[Average, Expected]:
    """Mean of sums whose terms are dropped, each row by itself, and what it must be."""
    generator = torch.Generator().manual_seed(seed)
    terms = torch.randn(ROWS, TERMS, 8, generator=generator, dtype=torch.float64)
    keep = (torch.rand(DRAWS, ROWS, TERMS, generator=generator) >= RATE).double()
    draws = factor * torch.einsum("drt,rtf->drf", keep, terms) / (1 - RATE)
    close = replace(ALLOWANCE, model=1e-7, yardstick=0.0)
    stated = Expected(quantities={"output": terms.sum(dim=1)}, allowances={"output": close}, hidden_rows={})
    return Average(quantity="output", mean=draws.mean(0), std=draws.std(0), draws=DRAWS), stated


def test_a_mean_that_is_a_little_off_everywhere_is_seen_as_a_whole() -> None:
    """8 % off in all elements, none of which is 8 standard errors off by itself."""
    seen = [told(observation, of=stated) for observation, stated in (drawn_mean(seed, 1.08) for seed in range(20))]
    assert all(found.status == "failed" for found in seen)
    whole = [found.reason for found in seen if "as a whole" in found.reason]
    assert len(whole) > 10
    assert all("+" in reason and "allowed 6." in reason for reason in whole)


def test_a_mean_that_is_right_passes_whatever_the_seed() -> None:
    """Over 200 seeds, no chance is taken for a bias."""
    assert [seed for seed in range(200) if told(drawn_mean(seed)[0], of=drawn_mean(seed)[1]).status != "passed"] == []


def test_a_mean_that_is_nan_fails() -> None:
    """NaN is not within any number of standard errors."""
    assert told(average(EXPECTED * NAN)).status == "failed"


def test_a_mean_of_another_shape_is_told_as_such() -> None:
    """Shape comes first here too."""
    assert told(average(EXPECTED[:1])).reason == "Needed. But output has shape (1, 3), must be (2, 3)."


# Several claims


def test_a_fact_needs_no_tensor() -> None:
    """What holds passes with its numbers; what does not is said in the check's own words."""
    held = told(Holds(holds=True, what="3 of 4 were dropped", measured=1.0, allowed=2.0))
    assert (held.status, held.measured, held.allowed) == ("passed", 1.0, 2.0)
    assert told(Holds(holds=False, what="3 of 4 were dropped")).reason == "Needed. But 3 of 4 were dropped."


def test_of_several_passes_the_one_nearest_to_its_limit_is_kept() -> None:
    """The numbers of a pass are those of the largest share."""
    found = told(
        output(EXPECTED.tolist()),
        Holds(holds=True, what="x", measured=3.0, allowed=4.0),
        Holds(holds=True, what="x", measured=100.0, allowed=1000.0),
    )
    assert (found.measured, found.allowed) == (3.0, 4.0)


def test_of_several_faults_a_malformed_one_is_told_first_and_else_the_worst() -> None:
    """A fault without a number that comes first is told; among numbers, the largest share."""
    small, large = output([[1.0, 2.0, 5.0], [0.0] * 3]), output([[1.0, 2.0, 9.0], [0.0] * 3])
    assert told(small, large).measured == 6.0
    malformed = Holds(holds=False, what="weights were returned")
    assert told(malformed, large).reason == "Needed. But weights were returned."


def test_a_check_that_claims_nothing_passes() -> None:
    """What has nothing to say has found no fault."""
    assert told() == Finding(check="a_check", status="passed")
