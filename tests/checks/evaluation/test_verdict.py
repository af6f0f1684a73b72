"""Tests of ``judge`` and ``evaluate``: what is compared, in which order, and what is said of a fault."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace as replace_limit
from torch import Tensor

from attnbench.cases import DTYPES, Case, Dtype
from attnbench.checks.evaluation.causes import Causes
from attnbench.checks.evaluation.verdict import Judgement, evaluate, judge
from attnbench.checks.observations import Agree, Average, Equal, Exact, Holds, Match, Observation, RowSum, Scale, Slope
from attnbench.interface import Axis, FaultModel, Inputs, Policies, Work
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.generate_cases import PROBE
from attnbench.operators.multihead.suites import CROSS
from attnbench.oracle.error_budget import Allowance
from attnbench.oracle.expected import CaseOracle, Expected
from attnbench.records.types import Finding
from attnbench.records.value_facts import (
    BitsDiffer,
    Compared,
    ConditionViolated,
    Coordinate,
    Limit,
    MeanAmplitudeOff,
    MeanOff,
    NearLimit,
    NotFinite,
    NothingDropped,
    Phrase,
    PolicyDeviation,
    RowSumOff,
    ScaleOff,
    SeenPolicy,
    SharedPositions,
    SlopeOff,
    UnexpectedQuantity,
    ValueFact,
    ValuesOff,
    WrongDtype,
    WrongShape,
)
from attnbench.words.findings import describe_fact

INF, NAN = math.inf, math.nan
# The allowed error is 4 × 0.25 = 1.
ALLOWANCE = Allowance(model=0.25, yardstick=0.125, factor=4.0, floor=1e-45)
BUDGET = Limit(allowed=1.0, origin="budget", factor=4.0, model=0.25, yardstick=0.125)
OUTPUT = Compared(quantity="output")
# EXPECTED has shape (2, 3); its second row is fully masked.
EXPECTED = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
HIDDEN = torch.tensor([[False], [True]])
CASE = Case(operator="multihead", problem=CROSS)


class PlainOperator:
    """Operator that has only the methods that ``evaluate`` calls, with trivial answers."""

    row_policies: frozenset[tuple[str, str]] = frozenset()

    def axes(self, case: Case, quantity: str) -> Sequence[Axis]:
        """Return no axes, so that messages give indices."""
        return ()

    def fault_models(self, case: Case, quantities: Any) -> Sequence[FaultModel]:
        """Return no fault models."""
        return ()

    def work(self, case: Case) -> Work:
        """Return the work of six query-key pairs."""
        return Work(flop=0, pairs=6)


class StatedOracle(CaseOracle):
    """A case oracle whose expected values are given by the test."""

    def __init__(
        self, expected: Expected, with_dropout: Callable[[Tensor], Expected] | None = None, case: Case = CASE
    ) -> None:
        no_inputs = Inputs(parameters={}, tensors={})
        super().__init__(case, PlainOperator(), case.dtype, lambda: no_inputs, expected=expected)  # type: ignore[arg-type]
        self._with_dropout = with_dropout

    @property
    def outputs_all_dropped(self) -> dict[str, Tensor]:  # type: ignore[override]
        """Outputs for the case that every attention weight is dropped: zeros."""
        return {name: torch.zeros_like(value) for name, value in self.expected.quantities.items()}

    def compute_with_dropout(self, keep: Tensor) -> Expected:
        """Return the expected values that the test gives for a dropout mask."""
        assert self._with_dropout is not None, "no dropout here"
        return self._with_dropout(keep)


def make_expected(output: Tensor = EXPECTED) -> Expected:
    """Return expected values with this output, the allowance ALLOWANCE, and a second row that is fully masked."""
    return Expected(quantities={"output": output}, allowances={"output": ALLOWANCE}, hidden_rows={"output": HIDDEN})


def evaluate_all(
    *observations: Observation, expected: Expected | None = None, case_oracle: CaseOracle | None = None, **policies: Any
) -> Finding:
    """Evaluate observations as those of a check "a_check"."""
    case_oracle = case_oracle or StatedOracle(expected or make_expected())
    return evaluate("a_check", observations, case_oracle, Policies(**policies), causes=Causes())


def index(*positions: int) -> tuple[Coordinate, ...]:
    """Return the place of an element without axes."""
    return tuple(Coordinate(dimension=place, axis="", position=one) for place, one in enumerate(positions))


def observe_output(values: Any, dtype: torch.dtype = torch.float32) -> Match:
    """Return the observation of an output with these values."""
    return Match(quantities={"output": torch.tensor(values, dtype=dtype)})


def observe_equal(value: Any, expected: Any) -> Equal:
    """Return the observation that ``value`` must equal ``expected`` bit for bit."""
    return Equal(value=torch.as_tensor(value), expected=torch.as_tensor(expected), quantity="x", how=None)


def not_finite(place: tuple[int, ...], value: Any, expected: Any, count: int = 1) -> NotFinite:
    """Return the fact that NaN or infinity of the output is elsewhere, first at a place."""
    return NotFinite(
        compared=OUTPUT, count=count, total=6, place=index(*place), value=value, expected=expected, shared=()
    )


def bits_differ(
    place: tuple[int, ...], value: Any, expected: Any, *, total: int, count: int = 1, quantity: str = "x"
) -> ValueFact:
    """Return the fact that bits differ, most at a place."""
    compared = Compared(quantity=quantity)
    return BitsDiffer(
        compared=compared, count=count, total=total, place=index(*place), value=value, expected=expected, shared=()
    )


# Against the oracle


def test_an_error_within_the_allowance_passes_with_its_numbers() -> None:
    """A finding that passed has the largest error as ``measured`` and the allowed error as ``allowed``."""
    assert evaluate_all(observe_output([[1.0, 2.0, 3.25], [0.0, 0.0, 0.125]])) == Finding(
        check="a_check", status="passed", measured=0.25, allowed=1.0
    )


class DrawingOracle(StatedOracle):
    """A case oracle that allows twice the error for values that were drawn for one call, if asked for their own."""

    def compute_once(self, changed: Mapping[str, Tensor], *, own_allowances: bool = False) -> Expected:
        """Return the expected values, with the allowances of the case or with own ones."""
        own = {"output": replace(ALLOWANCE, model=2 * ALLOWANCE.model)}
        return replace(self.expected, allowances=own) if own_allowances else self.expected


@pytest.mark.parametrize(
    ("error", "status", "allowed"), [(0.5, "passed", 1.0), (1.5, "passed", 2.0), (2.5, "failed", 2.0)]
)
def test_drawn_values_fail_by_their_own_allowances(error: float, status: str, allowed: float) -> None:
    """The allowances of the case are enough to pass; where they are exceeded, those of the drawn values decide."""
    drawn = replace(observe_output([[1.0, 2.0, 3.0 + error], [0.0, 0.0, 0.0]]), drawn_once=True)
    found = evaluate_all(drawn, case_oracle=DrawingOracle(make_expected()))
    assert (found.status, found.measured, found.allowed) == (status, error, allowed)


def test_an_error_beyond_half_of_the_allowance_is_noted() -> None:
    """An error above half of the allowance, up to the whole of it, passes with a warning."""
    assert evaluate_all(observe_output([[1.0, 2.0, 3.5], [0.0, 0.0, 0.0]])).warnings == ()
    assert evaluate_all(observe_output([[1.0, 2.0, 3.75], [0.0, 0.0, 0.0]])).warnings == (NearLimit(share=0.75),)
    at_limit = evaluate_all(observe_output([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]]))
    assert (at_limit.status, at_limit.warnings) == ("passed", (NearLimit(share=1.0),))


def test_wrong_values_are_reported_with_count_share_and_worst_element() -> None:
    """The message gives the number and fraction of wrong elements, the worst one, and how the allowance is computed."""
    found = evaluate_all(observe_output([[1.0, 4.5, 3.5], [0.0, -1.5, 0.0]]))
    assert found == Finding(
        check="a_check",
        status="failed",
        facts=(
            ValuesOff(
                compared=OUTPUT,
                count=2,
                total=6,
                worst=2.5,
                place=index(0, 1),
                value=4.5,
                expected=2.0,
                shared=(),
                limit=BUDGET,
            ),
        ),
        measured=2.5,
        allowed=1.0,
    )


def test_shape_is_compared_before_values() -> None:
    """A wrong shape is the reported fault, even if the values would broadcast to the right shape."""
    found = evaluate_all(observe_output([[1.0, 2.0, 3.0]]))
    assert found.facts == (WrongShape(compared=OUTPUT, shape=(1, 3), expected=(2, 3)),)
    assert (found.measured, found.allowed) == (None, None)


def test_dtype_is_compared_before_values() -> None:
    """The right values in a wrong dtype fail, and the dtype is the reported fault."""
    found = evaluate_all(observe_output(EXPECTED.tolist(), dtype=torch.float64))
    assert found.facts == (WrongDtype(compared=OUTPUT, dtype="float64", expected="float32"),)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        (
            [[1.0, NAN, 99.0], [0.0, INF, 0.0]],
            not_finite((0, 1), "nan", 2.0, count=2),
        ),
        (
            [[1.0, 2.0, -INF], [0.0, 0.0, 0.0]],
            not_finite((0, 2), "-inf", 3.0),
        ),
    ],
)
def test_nan_and_infinity_are_compared_before_values(values: Any, fault: NotFinite) -> None:
    """The message gives the first wrong NaN or infinity with its index, even if a finite element is far off."""
    assert evaluate_all(observe_output(values)).facts == (fault,)


def test_nan_and_infinity_must_be_where_the_oracle_has_them() -> None:
    """If an expected value is NaN, only NaN is right; a finite number and an infinity are wrong."""
    expected = torch.tensor([[1.0, NAN, 3.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert (
        evaluate_all(observe_output([[1.0, NAN, 3.0], [0.0, 0.0, 0.0]]), expected=make_expected(expected)).status
        == "passed"
    )
    for wrong in (2.0, INF):
        found = evaluate_all(observe_output([[1.0, wrong, 3.0], [0.0, 0.0, 0.0]]), expected=make_expected(expected))
        assert found.facts == (not_finite((0, 1), "inf" if wrong == INF else wrong, "nan"),)


def test_an_infinity_of_the_other_sign_is_wrong() -> None:
    """If an expected value is infinity, minus infinity is wrong."""
    expected = torch.tensor([[1.0, 2.0, INF], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert (
        evaluate_all(observe_output([[1.0, 2.0, INF], [0.0, 0.0, 0.0]]), expected=make_expected(expected)).status
        == "passed"
    )
    assert (
        evaluate_all(observe_output([[1.0, 2.0, -INF], [0.0, 0.0, 0.0]]), expected=make_expected(expected)).status
        == "failed"
    )


def test_a_quantity_that_the_case_does_not_have_fails() -> None:
    """If a call returns weights on a case that does not request them, the check fails."""
    found = evaluate_all(Match(quantities={"weights": torch.zeros(1)}))
    assert found.facts == (UnexpectedQuantity(quantity="weights"),)


def test_empty_tensors_match() -> None:
    """An empty output has no wrong element."""
    empty = torch.zeros(0, 3, dtype=torch.float64)
    plain = Expected(quantities={"output": empty}, allowances={"output": ALLOWANCE}, hidden_rows={})
    assert evaluate_all(Match(quantities={"output": empty.float()}), expected=plain).status == "passed"


def test_a_dropout_mask_is_handed_to_the_oracle() -> None:
    """If an observation has a dropout mask, its values are compared with the oracle's under that mask."""
    keep, dropped_output = torch.tensor([True, False]), torch.full_like(EXPECTED, 7.0)

    def compute_with_dropout(mask: Tensor) -> Expected:
        assert mask is keep
        return make_expected(dropped_output)

    dropped = Match(quantities={"output": dropped_output.float()}, keep=keep)
    case_oracle = StatedOracle(make_expected(), compute_with_dropout)
    assert evaluate_all(dropped, case_oracle=case_oracle).status == "passed"
    assert (
        evaluate_all(Match(quantities={"output": dropped_output.float()}), case_oracle=case_oracle).status == "failed"
    )


@pytest.mark.parametrize(
    ("mode", "dtype", "status"),
    [
        ("autocast", torch.float32, "passed"),
        ("autocast", torch.bfloat16, "failed"),
        ("train", torch.float32, "failed"),
        ("train", torch.bfloat16, "passed"),
    ],
)
def test_a_gradient_has_the_dtype_of_its_input_or_parameter(mode: Any, dtype: torch.dtype, status: str) -> None:
    """Under autocast to bfloat16, gradients must be float32, like inputs and parameters; the output is bfloat16.

    In mode train in bfloat16, gradients and output must be bfloat16.
    """
    case = CASE.with_fields(dtype="bfloat16", mode=mode)
    stated = Expected(
        quantities={"output": EXPECTED, "grad.query": EXPECTED},
        allowances={"output": ALLOWANCE, "grad.query": ALLOWANCE},
        hidden_rows={},
    )
    case_oracle = StatedOracle(stated, case=case)
    assert evaluate_all(Match(quantities={"grad.query": EXPECTED.to(dtype)}), case_oracle=case_oracle).status == status
    assert evaluate_all(Match(quantities={"output": EXPECTED.bfloat16()}), case_oracle=case_oracle).status == "passed"
    assert evaluate_all(Match(quantities={"output": EXPECTED.float()}), case_oracle=case_oracle).facts == (
        WrongDtype(compared=OUTPUT, dtype="float32", expected="bfloat16"),
    )


def test_a_dtype_that_the_contract_leaves_open_may_be_any() -> None:
    """An observation with ``any_dtype`` passes in any dtype if its values are right."""
    free = Match(quantities={"output": EXPECTED.double()}, any_dtype=True)
    assert evaluate_all(free).status == "passed"


def test_a_coordinate_that_all_wrong_elements_share_is_reported() -> None:
    """If all wrong elements are of one query, the message says so, with the word for the axis that ``axes`` gives."""
    expected = torch.zeros(4, 8, dtype=torch.float64)

    class OperatorWithAxes(PlainOperator):
        def axes(self, case: Case, quantity: str) -> Sequence[Axis]:
            return [
                Axis(dimension=0, word="query", positions=range(4)),
                Axis(dimension=1, word="feature", positions=range(8)),
            ]

    case_oracle = StatedOracle(replace(make_expected(expected), hidden_rows={}))
    case_oracle.operator = OperatorWithAxes()  # type: ignore[assignment]
    value = torch.zeros(4, 8)
    value[2] = 3.0
    value[2, 5] = 4.0
    (fact,) = evaluate_all(Match(quantities={"output": value}), case_oracle=case_oracle).facts
    assert isinstance(fact, ValuesOff)
    assert (fact.count, fact.shared) == (8, (SharedPositions(axis="query", positions=(2,)),))
    assert [(one.axis, one.position) for one in fact.place] == [("query", 2), ("feature", 5)]
    value[2] = NAN
    (fact,) = evaluate_all(Match(quantities={"output": value}), case_oracle=case_oracle).facts
    assert isinstance(fact, NotFinite)
    assert (fact.count, fact.shared) == (8, (SharedPositions(axis="query", positions=(2,)),))


# Exact quantities


def test_an_exact_quantity_equals_the_oracle_rounded_once() -> None:
    """An exact quantity must be the oracle's values, rounded to the case's dtype.

    The next larger float32 number fails, and so does another dtype.
    """
    third = EXPECTED / 3
    assert evaluate_all(Exact(quantities={"output": third.float()}), expected=make_expected(third)).status == "passed"
    off = third.float()
    off[0, 1] = torch.nextafter(off[0, 1], torch.tensor(1.0))
    assert evaluate_all(Exact(quantities={"output": off}), expected=make_expected(third)).facts == (
        bits_differ((0, 1), off[0, 1].item(), third.float()[0, 1].item(), total=6, quantity="output"),
    )
    assert evaluate_all(Exact(quantities={"output": third.double()}), expected=make_expected(third)).facts == (
        WrongDtype(compared=OUTPUT, dtype="float64", expected="float32"),
    )


def test_a_mean_may_have_the_rounding_error_of_a_join() -> None:
    """A mean over 8 keys may be off by 4 · (2 + ln 8) roundoffs, 9.73e-7 in float32; other quantities by nothing."""
    near, far = (EXPECTED.float() + off for off in (9e-7, 1.2e-6))
    assert evaluate_all(Exact(quantities={"output": near}, mean_over=8)).status == "passed"
    assert evaluate_all(Exact(quantities={"output": near})).status == "failed"
    finding = evaluate_all(Exact(quantities={"output": far}, mean_over=8))
    assert (finding.status, finding.allowed) == ("failed", pytest.approx(9.726e-7, rel=1e-3))
    assert isinstance(finding.facts[0], ValuesOff)
    assert finding.facts[0].limit.origin == "join"
    assert isinstance(evaluate_all(Exact(quantities={"output": EXPECTED}, mean_over=8)).facts[0], WrongDtype)


# The scale of a whole tensor, estimated from all its elements


@pytest.fixture(scope="module")
def probe_oracle() -> Callable[[Dtype], CaseOracle]:
    """Function that returns the case oracle of the problem PROBE in a dtype."""

    @cache
    def build(dtype: Dtype) -> CaseOracle:
        case = Case(operator="multihead", problem=PROBE, dtype=dtype)
        return CaseOracle(case, OPERATOR, dtype, lambda: OPERATOR.inputs(case))

    return build


def scale_and_round(case_oracle: CaseOracle, factor: float) -> dict[str, Tensor]:
    """Return the oracle's quantities for a softmax scale multiplied by ``factor``, rounded to the case's dtype."""
    found = OPERATOR.evaluate(
        case_oracle.case, OPERATOR.scale_logits(case_oracle.case, case_oracle.exact_inputs, factor)
    )
    return {name: value.to(case_oracle.dtype) for name, value in found.items()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_error_of_one_percent_in_the_scale_fails_in_every_dtype(
    probe_oracle: Callable[[Dtype], CaseOracle], dtype: Dtype
) -> None:
    """A softmax scale that is 1 % too large fails in every dtype, and the right scale passes.

    In bfloat16 no single element is off by more than its allowed error.
    """
    case_oracle = probe_oracle(dtype)
    right, wrong = scale_and_round(case_oracle, 1.0)["output"], scale_and_round(case_oracle, 1.01)["output"]
    assert evaluate_all(Scale(quantity="output", value=right), case_oracle=case_oracle).status == "passed"
    found = evaluate_all(Scale(quantity="output", value=wrong), case_oracle=case_oracle)
    assert isinstance(found.facts[0], ScaleOff)
    assert (found.facts[0].probe, found.facts[0].off) == ("softmax_scale", found.measured)
    assert found.measured == pytest.approx(0.01, rel=0.1)
    if dtype == "bfloat16":
        assert evaluate_all(Match(quantities={"output": wrong}), case_oracle=case_oracle).status == "passed"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["grad.query", "grad.key", "grad.value"])
def test_an_error_of_three_percent_in_a_gradient_fails_in_every_dtype(
    probe_oracle: Callable[[Dtype], CaseOracle], name: str, dtype: Dtype
) -> None:
    """A gradient that is 3 % too large fails, by the estimate of its amplitude or of its softmax scale.

    The right gradient passes.
    """
    case_oracle = probe_oracle(dtype)
    right = scale_and_round(case_oracle, 1.0)[name]
    assert evaluate_all(Scale(quantity=name, value=right), case_oracle=case_oracle).status == "passed"
    found = evaluate_all(Scale(quantity=name, value=1.03 * right), case_oracle=case_oracle)
    assert found.status == "failed"
    assert isinstance(found.facts[0], ScaleOff)
    assert found.facts[0].quantity == name


def test_a_quantity_without_a_scale_passes_and_a_nan_fails(probe_oracle: Callable[[Dtype], CaseOracle]) -> None:
    """With one key, the output does not depend on the softmax scale, so any scale passes.

    An output with a NaN fails; of an output with a wrong shape, the shape is the reported fault.
    """
    single = Case(operator="multihead", problem=replace(PROBE, keys=1), dtype="float32")
    case_oracle = CaseOracle(single, OPERATOR, "float32", lambda: OPERATOR.inputs(single))
    assert "softmax_scale" not in case_oracle.find_probes("output")
    assert (
        evaluate_all(
            Scale(quantity="output", value=scale_and_round(case_oracle, 2.0)["output"]), case_oracle=case_oracle
        ).status
        == "passed"
    )
    value = scale_and_round(probe_oracle("float32"), 1.0)["output"]
    assert evaluate_all(Scale(quantity="output", value=value[:1]), case_oracle=probe_oracle("float32")).facts == (
        WrongShape(compared=OUTPUT, shape=(1, 33, 21), expected=(4, 33, 21)),
    )
    value[0, 0, 0] = NAN
    assert evaluate_all(Scale(quantity="output", value=value), case_oracle=probe_oracle("float32")).status == "failed"


# Fully masked rows


NAN_ROW = [[1.0, 2.0, 3.0], [NAN, NAN, NAN]]


def test_nan_in_a_fully_masked_row_passes_if_it_is_declared() -> None:
    """Under the policy hidden_rows='nan', NaN is right in fully masked rows, and zero is wrong."""
    assert evaluate_all(observe_output(NAN_ROW), hidden_rows="nan").status == "passed"
    assert evaluate_all(observe_output(EXPECTED.tolist()), hidden_rows="nan").facts == (
        not_finite((1, 0), 0.0, "nan", count=3),
        PolicyDeviation(policies=(SeenPolicy(name="hidden_rows", seen="zero", declared="nan"),)),
    )


def test_nan_in_a_fully_masked_row_fails_if_it_is_not_declared() -> None:
    """Without the policy, NaN in a fully masked row fails, because by the contract the attention there is zero."""
    assert evaluate_all(observe_output(NAN_ROW)).facts == (not_finite((1, 0), "nan", 0.0, count=3),)


def test_the_policy_applies_to_no_other_row() -> None:
    """Under the policy hidden_rows='nan', NaN in a row with visible keys fails."""
    assert evaluate_all(observe_output([[1.0, NAN, 3.0], [NAN, NAN, NAN]]), hidden_rows="nan").facts == (
        not_finite((0, 1), "nan", 2.0),
    )


# Equality bit for bit


def test_nan_equals_itself() -> None:
    """Two tensors with NaN at the same index are equal."""
    assert evaluate_all(observe_equal([1.0, NAN, INF], [1.0, NAN, INF])) == Finding(
        check="a_check", status="passed", measured=0.0, allowed=0.0
    )


def test_unequal_tensors_are_reported_with_the_worst_difference() -> None:
    """The message gives the number of differing elements and the worst one, whose difference is ``measured``."""
    assert evaluate_all(observe_equal([[1.0, 2.5], [3.0, 9.0]], [[1.0, 2.0], [3.0, 4.0]])) == Finding(
        check="a_check",
        status="failed",
        facts=(bits_differ((1, 1), 9.0, 4.0, count=2, total=4),),
        measured=5.0,
        allowed=0.0,
    )


@pytest.mark.parametrize(
    ("value", "expected", "numbers"),
    [
        ([NAN, 1.0], [2.0, 1.0], ("nan", 2.0)),
        ([2.0, 1.0], [NAN, 1.0], (2.0, "nan")),
        ([True, False], [False, False], (1.0, 0.0)),
    ],
)
def test_a_nan_and_a_number_differ(value: Any, expected: Any, numbers: tuple[Any, Any]) -> None:
    """A NaN and a number differ, and so do True and False."""
    assert evaluate_all(observe_equal(value, expected)).facts == (bits_differ((0,), *numbers, total=2),)


def test_equal_tensors_have_the_same_shape_and_dtype() -> None:
    """Two tensors with equal values but different shapes or dtypes are not equal."""
    compared = Compared(quantity="x")
    for value, fact in (
        (torch.ones(1, 2), WrongShape(compared=compared, shape=(1, 2), expected=(2,))),
        (torch.ones(2, dtype=torch.float64), WrongDtype(compared=compared, dtype="float64", expected="float32")),
    ):
        assert evaluate_all(observe_equal(value, torch.ones(2))).facts == (fact,)


def test_empty_tensors_are_equal() -> None:
    """Empty tensors are equal: on a case without padded keys, the weights of padded keys are an empty tensor."""
    assert evaluate_all(observe_equal(torch.zeros(0), torch.zeros(0))).status == "passed"


# Two runs of the same call


def test_two_runs_agree_within_twice_the_allowance() -> None:
    """Two runs may differ by twice the allowance, because each may differ from the oracle by one allowance."""

    def agree(value: float) -> Finding:
        return evaluate_all(
            Agree(value=torch.tensor([value]), expected=torch.tensor([1.0]), quantity="output", how="again")
        )

    assert (agree(3.0).status, agree(3.0).measured, agree(3.0).allowed) == ("passed", 2.0, 2.0)
    (fact,) = agree(3.5).facts
    assert isinstance(fact, ValuesOff)
    assert fact.compared == Compared(quantity="output", how=Phrase(key="again"))
    assert (fact.worst, fact.limit) == (2.5, replace_limit(BUDGET, allowed=2.0, origin="two_runs"))


def test_an_error_above_all_numbers_is_stored() -> None:
    """Two finite runs can be further apart than float64 can say; the fact is the same after it was stored."""
    ends = torch.tensor([1.5e308, 2.0], dtype=torch.float64)
    finding = evaluate_all(Agree(value=ends, expected=-ends, quantity="output", how="again"))
    (fact,) = finding.facts
    assert isinstance(fact, ValuesOff)
    assert (finding.status, fact.worst, fact.count) == ("failed", "inf", 2)
    assert msgspec.json.decode(msgspec.json.encode(fact), type=ValueFact) == fact
    assert describe_fact(fact)


# The mean over many draws of dropout


def observe_mean(mean: Tensor, std: float = 3.0) -> Average:
    """Return the observation of a mean over nine draws; its standard error is a third of ``std``."""
    return Average(quantity="output", mean=mean, std=torch.full_like(mean, std), draws=9)


def test_a_mean_within_eight_standard_errors_passes() -> None:
    """An element of the mean passes if its error of 9, minus the allowance of 1, is 8 standard errors of 1 each."""
    found = evaluate_all(observe_mean(EXPECTED + torch.tensor([9.0, 0.0, 0.0])))
    assert (found.status, found.measured, found.allowed) == ("passed", 8.0, 8.0)


def test_a_mean_with_a_larger_error_fails_with_its_index() -> None:
    """If an element is more than 8 standard errors off, the message says how many standard errors, and its index."""
    found = evaluate_all(observe_mean(EXPECTED + torch.tensor([0.0, 0.0, 12.0])))
    assert found.facts == (MeanOff(quantity="output", draws=9, off=11.0, allowed=8.0, place=index(0, 2)),)
    assert (found.measured, found.allowed) == (11.0, 8.0)


def test_draws_that_are_all_the_same_fail() -> None:
    """If all draws are equal, the check fails even if the mean is right, because nothing was dropped."""
    assert evaluate_all(observe_mean(EXPECTED, std=0.0)).facts == (NothingDropped(quantity="output", draws=9),)


ROWS, TERMS, RATE, DRAWS = 12, 6, 0.25, 256


def drawn_mean(seed: int, factor: float = 1.0) -> tuple[Average, Expected]:
    """Return the mean over DRAWS draws of a sum with dropout, and the expected values.

    Each row is a sum of terms, which are dropped independently in each row and draw. The mean is multiplied by
    ``factor``; any factor but 1 makes it wrong.
    """
    generator = torch.Generator().manual_seed(seed)
    terms = torch.randn(ROWS, TERMS, 8, generator=generator, dtype=torch.float64)
    keep = (torch.rand(DRAWS, ROWS, TERMS, generator=generator) >= RATE).double()
    draws = factor * torch.einsum("drt,rtf->drf", keep, terms) / (1 - RATE)
    close = replace(ALLOWANCE, model=1e-7, yardstick=0.0)
    stated = Expected(quantities={"output": terms.sum(dim=1)}, allowances={"output": close}, hidden_rows={})
    return Average(quantity="output", mean=draws.mean(0), std=draws.std(0), draws=DRAWS), stated


def test_a_small_error_in_every_element_of_a_mean_fails_as_a_whole() -> None:
    """If all elements of a mean are 8 % too large, the check fails for each of 20 seeds.

    For more than 10 of the seeds, the mean fails as a whole, not by a single element.
    """
    seen = [
        evaluate_all(observation, expected=stated)
        for observation, stated in (drawn_mean(seed, 1.08) for seed in range(20))
    ]
    assert all(found.status == "failed" for found in seen)
    whole = [fact for found in seen for fact in found.facts if isinstance(fact, MeanAmplitudeOff)]
    assert len(whole) > 10
    assert all(float(fact.share) > 0 and fact.allowed == 6 for fact in whole)


def test_a_mean_that_is_right_passes_whatever_the_seed() -> None:
    """For each of 200 seeds, the mean of right draws passes: no chance deviation is taken for a bias."""
    assert [
        seed
        for seed in range(200)
        if evaluate_all(drawn_mean(seed)[0], expected=drawn_mean(seed)[1]).status != "passed"
    ] == []


def test_a_mean_that_is_nan_fails() -> None:
    """A mean whose elements are NaN fails."""
    assert evaluate_all(observe_mean(EXPECTED * NAN)).status == "failed"


def test_a_mean_of_another_shape_fails_by_its_shape() -> None:
    """If a mean has a wrong shape, the shape is the reported fault."""
    fact = WrongShape(compared=OUTPUT, shape=(1, 3), expected=(2, 3))
    assert evaluate_all(observe_mean(EXPECTED[:1])).facts == (fact,)


# Observations without tensors, and several observations of one check


def test_a_condition_passes_with_its_numbers_or_fails_with_its_description() -> None:
    """An observation ``Holds`` passes with its numbers, or fails with the description that the check gave it."""
    found = evaluate_all(Holds(holds=True, violation="3 of 4 were dropped", measured=1.0, allowed=2.0))
    assert (found.status, found.measured, found.allowed) == ("passed", 1.0, 2.0)
    own = ConditionViolated(violation=Phrase(key="3 of 4 were dropped"))
    assert evaluate_all(Holds(holds=False, violation="3 of 4 were dropped")).facts == (own,)


def test_a_pass_has_the_numbers_of_the_observation_nearest_to_its_limit() -> None:
    """If several observations pass, the finding has the numbers of the one with the largest ``measured / allowed``."""
    found = evaluate_all(
        observe_output(EXPECTED.tolist()),
        Holds(holds=True, violation="x", measured=3.0, allowed=4.0),
        Holds(holds=True, violation="x", measured=100.0, allowed=1000.0),
    )
    assert (found.measured, found.allowed) == (3.0, 4.0)


def test_of_several_faults_the_worst_is_reported_unless_the_first_has_no_number() -> None:
    """Of several observations with numbers, the one that exceeds its limit by the largest factor is reported.

    If the first fault has no number, that fault is reported.
    """
    small, large = observe_output([[1.0, 2.0, 5.0], [0.0] * 3]), observe_output([[1.0, 2.0, 9.0], [0.0] * 3])
    assert evaluate_all(small, large).measured == 6.0
    malformed = Holds(holds=False, violation="weights were returned")
    assert isinstance(evaluate_all(malformed, large).facts[0], ConditionViolated)


def test_a_check_without_observations_passes() -> None:
    """A check that records no observation passes, and its finding has no numbers."""
    assert evaluate_all() == Finding(check="a_check", status="passed")


# Row sums and slopes, whose allowed error the rounding model decides


def test_the_sum_of_a_row_may_have_the_error_of_the_rounding_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that is off by more than a plain division allows may be off by 4 times the rounding model's error."""
    monkeypatch.setattr(StatedOracle, "find_row_sum_error", lambda *_: 0.5)
    sums = [RowSum(quantity="output", off=off, allowed=1.0) for off in (0.9, 1.9, 2.1)]
    found = [evaluate_all(one) for one in sums]
    assert [(one.status, one.allowed) for one in found] == [("passed", 1.0), ("passed", 2.0), ("failed", 2.0)]
    assert found[-1].facts == (RowSumOff(compared=OUTPUT, off=2.1, allowed=2.0),)


def test_a_slope_may_have_the_rounding_error_of_its_loss() -> None:
    """The error of the loss, 3 · 1, is divided by the step 0.5; the difference to the wider slope, 0.25, is added."""
    slope = Slope(derivative=10.0, slope=4.0, wider=4.25, step=0.5, weights={"output": 3.0}, quantity="grad.query")
    assert (evaluate_all(slope).status, evaluate_all(slope).allowed) == ("passed", 6.25)
    compared = Compared(quantity="grad.query")
    assert evaluate_all(replace(slope, derivative=10.5)).facts == (
        SlopeOff(compared=compared, off=6.5, slope=4.0, allowed=6.25, rounded=True),
    )
    exact = evaluate_all(replace(slope, wider=None))
    assert (exact.status, exact.measured, exact.allowed) == ("failed", 6.0, pytest.approx(4e-6))


def test_judging_needs_no_check_and_no_case_id() -> None:
    """``judge`` gives the facts of observations of a problem, and nothing for right ones."""
    wrong = judge([observe_output([[1.0, 2.0, 5.0], [0.0] * 3])], StatedOracle(make_expected()), Policies())
    assert (len(wrong.facts), wrong.measured, wrong.allowed) == (1, 2.0, 1.0)
    assert judge([], StatedOracle(make_expected()), Policies()) == Judgement()
