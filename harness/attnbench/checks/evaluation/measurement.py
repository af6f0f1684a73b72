"""Comparing the observations of a check with the expected values: one comparison for each quantity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnbench.checks.evaluation.places import find_place, find_shared_positions, unravel_index
from attnbench.checks.observations import Agree, Average, Equal, Exact, Holds, Match, Observation, RowSum, Scale, Slope
from attnbench.interface import Axis, Policies
from attnbench.oracle.error_budget import (
    FACTOR,
    ROUNDOFF,
    TWO_RUNS,
    Allowance,
    allowed_join_error,
    allowed_probe_error,
    allowed_rounded_slope_error,
    allowed_slope_error,
    averaged_rounding_error,
    error_along,
)
from attnbench.oracle.expected import CaseOracle, Expected
from attnbench.records.value_facts import (
    BitsDiffer,
    Compared,
    ConditionViolated,
    DeclaredNanMissing,
    Limit,
    MeanAmplitudeOff,
    MeanOff,
    NotFinite,
    NothingDropped,
    Phrase,
    RowSumOff,
    ScaleOff,
    SlopeOff,
    UnexpectedQuantity,
    ValueFact,
    ValuesOff,
    WrongDtype,
    WrongShape,
    store_number,
)

__all__ = ["QuantityComparison", "compare", "find_expected", "replace_declared_nan"]

# Largest allowed error of one element's mean over random draws, in standard errors. The bound is above the usual six
# standard errors, because there are many elements and their distributions are skewed.
STANDARD_ERRORS = 8.0
# Largest allowed error, in standard errors, of the amplitude that is estimated from the means of all elements.
POOLED_STANDARD_ERRORS = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityComparison:
    """The result of one comparison."""

    # What is wrong; empty if the comparison passed.
    facts: tuple[ValueFact, ...] = ()
    measured: float | None = None
    allowed: float | None = None

    @property
    def share(self) -> float:
        """Measured error as a multiple of the allowed error; 0 if no error was measured."""
        if self.measured is None or self.allowed is None:
            return 0.0
        if self.allowed == 0:
            return math.inf if self.measured else 0.0
        return self.measured / self.allowed


def compare(
    observation: Observation, expected: Expected, case_oracle: CaseOracle, policies: Policies
) -> list[QuantityComparison]:
    """Compare an observation with the expected values; return one comparison for each quantity.

    A further comparison is a failure if the policies declare NaN gradients, but no gradient is NaN.
    """
    match observation:
        case Match():
            found = [
                _compare_match(name, observation, expected, case_oracle, policies) for name in observation.quantities
            ]
            return [*found, *_require_declared_nan(observation, expected, case_oracle, policies)]
        case Exact():
            return [
                _compare_exact(name, value, expected, case_oracle, mean_over=observation.mean_over)
                for name, value in observation.quantities.items()
            ]
        case Scale():
            return [_compare_scale(observation, expected, case_oracle, policies)]
        case Equal():
            return [_compare_bits(_make_compared(observation, expected), observation.value, observation.expected)]
        case Agree():
            limit = _make_limit(expected.allowances[observation.quantity], runs=TWO_RUNS)
            value, other = observation.value, observation.expected
            axes = _get_axes(observation.quantity, value, case_oracle)
            return [_compare_within(_make_compared(observation, expected), value, other, axes, limit)]
        case Average():
            return [_compare_average(observation, expected, case_oracle, policies)]
        case RowSum():
            return [_compare_row_sum(observation, expected, case_oracle)]
        case Slope():
            return [_compare_slope(observation, expected)]
        case Holds():
            violation = ConditionViolated(violation=_make_phrase(observation.violation), rows=observation.rows)
            deviation = (observation.deviation,) if observation.deviation else ()
            facts = () if observation.holds else (violation, *deviation)
            return [QuantityComparison(facts=facts, measured=observation.measured, allowed=observation.allowed)]


def _name_match(observation: Match, name: str) -> Compared:
    return Compared(quantity=name, how=None if observation.how is None else _make_phrase(observation.how))


def _make_compared(observation: Equal | Agree | RowSum | Slope, expected: Expected) -> Compared:
    how = None if isinstance(observation, RowSum) or observation.how is None else _make_phrase(observation.how)
    rows = "" if isinstance(observation, Slope) else observation.rows
    # All that a case without another row computes is confined to fully masked rows, the gradients included.
    hidden = expected.hidden_rows.get("output")
    if hidden is not None and hidden.numel() and bool(hidden.all()):
        rows = rows or "masked"
    return Compared(quantity=observation.quantity, how=how, rows=rows)


def _make_phrase(given: Phrase | str) -> Phrase:
    return given if isinstance(given, Phrase) else Phrase(key=given)


def _make_limit(allowance: Allowance, *, runs: float = 1) -> Limit:
    return Limit(
        allowed=runs * allowance.allowed,
        origin="budget" if runs == 1 else "two_runs",
        factor=allowance.factor,
        model=allowance.model,
        yardstick=allowance.yardstick,
    )


def find_expected(observation: Observation, case_oracle: CaseOracle, *, own_allowances: bool = False) -> Expected:
    """Return the expected values of an observation, under its dropout mask or with its changed tensors, if any.

    ``own_allowances``: if the changed values were drawn for one call, compute their own allowed errors.
    """
    if isinstance(observation, Match) and observation.keep is not None:
        return case_oracle.compute_with_dropout(observation.keep)
    if isinstance(observation, Match) and observation.drawn_once:
        return case_oracle.compute_once(observation.changed, own_allowances=own_allowances)
    if isinstance(observation, Match):
        return case_oracle.compute_with_tensors(observation.changed)
    return case_oracle.expected


def _get_axes(quantity: str, value: Tensor, case_oracle: CaseOracle) -> Sequence[Axis]:
    """Return the axes of a quantity; an empty tuple if ``value`` does not have the quantity's shape."""
    expected = case_oracle.expected.quantities.get(quantity)
    fits = expected is not None and value.shape == expected.shape
    return case_oracle.operator.axes(case_oracle.case, quantity) if fits else ()


def _compare_match(
    name: str, observation: Match, expected: Expected, case_oracle: CaseOracle, policies: Policies
) -> QuantityComparison:
    value, target = observation.quantities[name], expected.quantities.get(name)
    if target is None:
        return QuantityComparison(facts=(UnexpectedQuantity(quantity=name),))
    compared = _name_match(observation, name)
    wanted = case_oracle.gradient_dtype if name.startswith("grad.") else case_oracle.dtype
    if value.dtype != wanted and not observation.any_dtype:
        return QuantityComparison(facts=(_make_dtype_fact(compared, value.dtype, wanted),))
    rows = expected.hidden_rows.get(name)
    nan_rows = policies.hidden_rows == "nan" and not name.startswith("grad.")
    if rows is not None and nan_rows and value.shape == target.shape:
        # The policies declare that fully masked rows are NaN, so NaN is expected there.
        target = target.masked_fill(rows, math.nan)
    value = _replace_open_gradients(name, value, expected, policies)
    limit, axes = _make_limit(expected.allowances[name]), _get_axes(name, value, case_oracle)
    return _compare_within(compared, value, target, axes, limit)


def _replace_open_gradients(name: str, value: Tensor, expected: Expected, policies: Policies) -> Tensor:
    """Replace gradients by the expected values where fully masked rows reach them and the policies leave them open.

    With hidden_row_gradients="nan", NaN is left open; with "softmax", the gradients of masks are left open.
    """
    reached, target = expected.hidden_rows.get(name), expected.quantities[name]
    if reached is None or not name.startswith("grad.") or value.shape != target.shape:
        return value
    if policies.hidden_row_gradients == "nan":
        reached = reached & value.isnan()
    return torch.where(reached, target.to(value.dtype), value)


def replace_declared_nan(name: str, value: Tensor, target: Tensor, expected: Expected, policies: Policies) -> Tensor:
    """Replace NaN by ``target`` where fully masked rows reach it and the policies declare that it may be NaN."""
    rows = expected.hidden_rows.get(name)
    declared = policies.hidden_row_gradients if name.startswith("grad.") else policies.hidden_rows
    if declared != "nan" or rows is None or value.shape != target.shape:
        return value
    return torch.where(rows & value.isnan(), target.to(value.dtype), value)


def _require_declared_nan(
    observation: Match, expected: Expected, case_oracle: CaseOracle, policies: Policies
) -> list[QuantityComparison]:
    """Return a fault if the policies declare NaN gradients in fully masked rows, but no gradient is NaN.

    Gradients of masks alone prove nothing: the gradient of a mask of minus infinity may contain no NaN.
    """
    if policies.hidden_row_gradients != "nan":
        return []
    masks = {f"grad.{name}" for name in case_oracle.case.problem.additive_masks}
    reached = [
        name
        for name in observation.quantities
        if name.startswith("grad.") and name in expected.hidden_rows and bool(expected.hidden_rows[name].any())
    ]
    if masks.issuperset(reached) or any(bool(observation.quantities[name].isnan().any()) for name in reached):
        return []
    return [QuantityComparison(facts=(DeclaredNanMissing(),))]


def _compare_exact(
    name: str, value: Tensor, expected: Expected, case_oracle: CaseOracle, *, mean_over: int
) -> QuantityComparison:
    """Compare bit for bit, or within the error of a join if the quantity is a mean over ``mean_over`` keys.

    Where the partial means may be stored in half precision, their rounding has either sign. There, a common factor of
    all means is no error of a join.
    """
    target, axes = expected.quantities[name].to(case_oracle.dtype), _get_axes(name, value, case_oracle)
    bits = _compare_bits(Compared(quantity=name), value, target, axes)
    if not (bits.facts and mean_over) or value.dtype != target.dtype:
        return bits
    partial = case_oracle.case.dtype
    allowed = allowed_join_error(case_oracle.precision, mean_over, partial=partial)
    within = _compare_within(Compared(quantity=name), value, target, axes, Limit(allowed=allowed, origin="join"))
    if within.facts or ROUNDOFF[partial] <= ROUNDOFF["float32"]:
        return within
    off, averaged = error_along(value, target.double(), target.double()), averaged_rounding_error(partial)
    fault = ScaleOff(quantity=name, probe="amplitude", off=store_number(off), allowed=averaged)
    return max(within, _bound(abs(off), averaged, fault), key=lambda one: one.share)


def _compare_scale(
    observation: Scale, expected: Expected, case_oracle: CaseOracle, policies: Policies
) -> QuantityComparison:
    """Compare softmax scale and amplitude (common factor), each estimated from a whole tensor.

    Return the comparison with the larger ratio of measured to allowed error.
    """
    target, name = expected.quantities[observation.quantity], observation.quantity
    if observation.value.shape != target.shape:
        return _report_shape(Compared(quantity=name), observation.value, target)
    value = replace_declared_nan(name, observation.value, target, expected, policies)
    found, value = [], _replace_open_gradients(name, value, expected, policies)
    for which, probe in case_oracle.find_probes(name).items():
        off = error_along(value, target, probe.direction)
        allowed = allowed_probe_error(
            case_oracle.precision, gradient=name.startswith("grad."), elements=target.numel(), model=probe.model
        )
        fault = ScaleOff(quantity=name, probe=which, off=store_number(off), allowed=allowed)
        found.append(_bound(abs(off), allowed, fault))
    # An error of NaN counts as larger than any number.
    return max(found, key=lambda one: (math.isnan(one.share), one.share), default=QuantityComparison())


def _compare_slope(observation: Slope, expected: Expected) -> QuantityComparison:
    """Compare a derivative with a central difference of a loss."""
    if observation.wider is None:
        allowed = allowed_slope_error(observation.slope)
    else:
        allowed = allowed_rounded_slope_error(
            rounding=sum(expected.allowances[name].allowed * factor for name, factor in observation.weights.items()),
            step=observation.step,
            curvature=abs(observation.wider - observation.slope),
        )
    off = abs(observation.derivative - observation.slope)
    fault = SlopeOff(
        compared=_make_compared(observation, expected),
        off=store_number(off),
        slope=store_number(observation.slope),
        allowed=store_number(allowed),
        rounded=observation.wider is not None,
    )
    return _bound(off, allowed, fault)


def _compare_row_sum(observation: RowSum, expected: Expected, case_oracle: CaseOracle) -> QuantityComparison:
    """Compare the error of row sums with the allowed error.

    The rounding model runs only if the error is above ``observation.allowed``, the allowed error of a plain division.

    Weights that are joined from blocks of keys have the rounding error of a logsumexp, which does not cancel in a row.
    """
    off, allowed = observation.off, observation.allowed
    if off > allowed:
        allowed = max(allowed, FACTOR * case_oracle.find_row_sum_error(observation.quantity))
    compared = _make_compared(observation, expected)
    return _bound(off, allowed, RowSumOff(compared=compared, off=store_number(off), allowed=allowed))


def _bound(off: float, allowed: float, fault: ValueFact) -> QuantityComparison:
    """Return the comparison of an error with the allowed error; ``fault`` is what is wrong if it is larger."""
    return QuantityComparison(facts=() if off <= allowed else (fault,), measured=off, allowed=allowed)


def _compare_within(
    compared: Compared, value: Tensor, expected: Tensor, axes: Sequence[Axis], limit: Limit
) -> QuantityComparison:
    """Compare the shapes of two tensors, then positions of NaN and infinity, then values."""
    allowed = limit.allowed
    if value.shape != expected.shape:
        return _report_shape(compared, value, expected)
    value, expected = value.double(), expected.double()
    error = (value - expected).abs()
    measured = _find_largest(error)
    if measured <= allowed < math.inf:  # the largest error is finite, so every number is finite
        return QuantityComparison(measured=measured, allowed=allowed)
    # Two numbers that are not finite agree only if both are NaN, or the same infinity.
    disagrees = ~((value.isfinite() & expected.isfinite()) | (value == expected) | (value.isnan() & expected.isnan()))
    first = _find_first(disagrees)
    if first is not None:
        return QuantityComparison(
            facts=(NotFinite(compared=compared, **_locate(disagrees, first, value, expected, axes)),)
        )
    error = torch.where(expected.isfinite(), error, 0.0)
    measured = _find_largest(error)
    if measured <= allowed:
        return QuantityComparison(measured=measured, allowed=allowed)
    worst, wrong = unravel_index(int(error.argmax()), error.shape), error > allowed
    located = _locate(wrong, worst, value, expected, axes)
    fault = ValuesOff(compared=compared, worst=store_number(measured), limit=limit, **located)
    return QuantityComparison(facts=(fault,), measured=measured, allowed=allowed)


def _locate(
    wrong: Tensor, place: tuple[int, ...], value: Tensor, expected: Tensor, axes: Sequence[Axis]
) -> dict[str, Any]:
    """Return what facts say of wrong elements: their number and places, and the values at one place."""
    return {
        "count": int(wrong.sum()),
        "total": wrong.numel(),
        "place": find_place(place, axes),
        "value": store_number(value[place].item()),
        "expected": store_number(expected[place].item()),
        "shared": find_shared_positions(wrong, axes),
    }


def _compare_bits(compared: Compared, value: Tensor, expected: Tensor, axes: Sequence[Axis] = ()) -> QuantityComparison:
    if value.shape != expected.shape:
        return _report_shape(compared, value, expected)
    if value.dtype != expected.dtype:
        return QuantityComparison(facts=(_make_dtype_fact(compared, value.dtype, expected.dtype),))
    if torch.equal(value, expected):
        return QuantityComparison(measured=0.0, allowed=0.0)
    # NaN in both tensors at the same position counts as equal.
    differs = (
        ~((value == expected) | (value.isnan() & expected.isnan())) if value.is_floating_point() else value != expected
    )
    if not bool(differs.any()):
        return QuantityComparison(measured=0.0, allowed=0.0)
    # Equal infinities have the difference NaN, and are no error.
    apart = torch.where(differs, (value.double() - expected.double()).abs(), -1.0)
    difference, worst = float(apart.max()), unravel_index(int(apart.argmax()), apart.shape)
    fault = BitsDiffer(compared=compared, **_locate(differs, worst, value, expected, axes))
    return QuantityComparison(facts=(fault,), measured=difference, allowed=0.0)


def _compare_average(
    observation: Average, expected: Expected, case_oracle: CaseOracle, policies: Policies
) -> QuantityComparison:
    """Compare a mean over dropout masks with the expected values: each element, and the amplitude.

    The amplitude is the common factor of all elements. It shows smaller errors than a single element does.
    """
    name, target, allowance = (
        observation.quantity,
        expected.quantities[observation.quantity],
        expected.allowances[observation.quantity],
    )
    if observation.mean.shape != target.shape:
        return _report_shape(Compared(quantity=name), observation.mean, target)
    # The NaN of hidden rows is compared by the checks of single calls.
    mean = replace_declared_nan(name, observation.mean, target, expected, policies)
    kept = mean.isnan() == observation.mean.isnan()
    observation = replace(observation, mean=mean, std=torch.where(kept, observation.std, 0.0))
    if not bool(observation.std.any()):
        return QuantityComparison(facts=(NothingDropped(quantity=name, draws=observation.draws),))
    off, standard_error = (
        observation.mean - target,
        (observation.std / math.sqrt(observation.draws)).clamp(min=allowance.floor),
    )
    # Rounding may change a mean by up to the allowance, so only the error beyond the allowance counts.
    scores = (off.abs() - allowance.allowed).clamp(min=0) / standard_error
    score, worst = float(scores.max()), unravel_index(int(scores.argmax()), scores.shape)
    mean_off = MeanOff(
        quantity=name,
        draws=observation.draws,
        off=store_number(score),
        allowed=STANDARD_ERRORS,
        place=find_place(worst, _get_axes(name, observation.mean, case_oracle)),
    )
    element = _bound(score, STANDARD_ERRORS, mean_off)
    signal = target - case_oracle.outputs_all_dropped[name]
    signal = signal.masked_fill(signal.abs() <= allowance.allowed, 0.0)
    amplitude, error = _estimate_amplitude(off, signal, standard_error)
    pooled = max(abs(amplitude) - averaged_rounding_error(case_oracle.precision), 0.0) / error if error else 0.0
    amplitude_off = MeanAmplitudeOff(
        quantity=name,
        draws=observation.draws,
        share=store_number(amplitude),
        off=store_number(pooled),
        allowed=POOLED_STANDARD_ERRORS,
    )
    whole = _bound(pooled, POOLED_STANDARD_ERRORS, amplitude_off)
    return whole if whole.facts and score <= STANDARD_ERRORS else element


def _estimate_amplitude(off: Tensor, signal: Tensor, standard_error: Tensor) -> tuple[float, float]:
    """Return the relative error of a mean's amplitude (common factor of all elements), and its standard error.

    ``off`` is the error of each element. ``signal`` is the part of each element that dropout changes. Dropout is
    independent from row to row, but the elements of one row share their dropout. Therefore only one element of each row
    counts: the element with the largest ratio of signal to standard error.
    """
    off, signal, standard_error = (tensor.flatten(0, -2) for tensor in (off, signal, standard_error))
    best = (signal / standard_error).abs().argmax(dim=-1, keepdim=True)
    off, signal, standard_error = (tensor.gather(-1, best) for tensor in (off, signal, standard_error))
    # Divide before squaring: the square of a tiny standard error would underflow to zero.
    off, signal = off / standard_error, signal / standard_error
    precision = float((signal**2).sum())
    if not precision:
        return 0.0, 0.0
    return float((off * signal).sum()) / precision, 1 / math.sqrt(precision)


def _report_shape(compared: Compared, value: Tensor, expected: Tensor) -> QuantityComparison:
    return QuantityComparison(
        facts=(WrongShape(compared=compared, shape=tuple(value.shape), expected=tuple(expected.shape)),)
    )


def _make_dtype_fact(compared: Compared, dtype: torch.dtype, expected: torch.dtype) -> WrongDtype:
    names = (str(one).removeprefix("torch.") for one in (dtype, expected))
    return WrongDtype(compared=compared, dtype=next(names), expected=next(names))


def _find_largest(error: Tensor) -> float:
    """Return the largest element; 0 if there is none, NaN if an element is NaN."""
    return float(error.max()) if error.numel() else 0.0


def _find_first(where: Tensor) -> tuple[int, ...] | None:
    """Return the index of the first true element, or None."""
    return unravel_index(int(where.flatten().int().argmax()), where.shape) if bool(where.any()) else None
