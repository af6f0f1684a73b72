"""Diagnosing a failure: find the fault models that reproduce what the implementation returned.

A fault model is a known mistake with which the oracle evaluates its formula, such as an ignored mask.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnbench.checks.evaluation.chance import log_chance_of_fit
from attnbench.checks.evaluation.measurement import compare, replace_declared_nan
from attnbench.checks.evaluation.places import COINCIDENCE
from attnbench.checks.observations import Agree, Average, Exact, Match, Observation
from attnbench.interface import FaultModel, Policies
from attnbench.oracle.error_budget import FACTOR, Allowance, largest_error
from attnbench.oracle.expected import CaseOracle, Expected
from attnbench.records.value_facts import Acts, Fault, LooksLike, NotDiagnosed, Phrase, StridesMisread

__all__ = ["diagnose", "find_fitting_scales"]

# Largest distance between the observed values and the values of a matching fault model, as a multiple of the allowance.
LOOSE = 2.0
# A fault model explains a failure if the error against the values of the fault model is at most this fraction of the
# error against the expected values.
EXPLAINED = 0.5
# If the error against the values of a fault model is below this fraction of the error against the expected values, the
# allowance is computed again with the fault in the formula. The reason: a fault that makes logits larger makes rounding
# errors larger.
PROMISING = 1 / 16
# A case with more query-key pairs than this gets no diagnosis, because a diagnosis takes a few dozen evaluations of the
# oracle.
PAIRS = 4_000_000

# How far the softmax scale that was fitted to values may be from that of a fault model, as a factor. A large error is
# fitted too low or too high by a few percent, because the fit is a projection on a derivative: 0.555 for 1/√3 = 0.577.
AGREES = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _MatchingFault:
    """A fault model whose result is close to what the implementation returned."""

    model: FaultModel
    acts: Acts
    # Error of the observed values against the fault model's values, as a multiple of the allowed error.
    remaining: float
    quantities: Mapping[str, Tensor]


def diagnose(
    observation: Observation,
    expected: Expected,
    case_oracle: CaseOracle,
    policies: Policies,
    *,
    only: Collection[str] | None = None,
) -> LooksLike | StridesMisread | NotDiagnosed | None:
    """Return what a failed observation looks like, or None.

    The fault models that explain the observation best are found; or that only strides are misread, or that the case is
    too large for the search. ``only`` limits the search to the fault models of these names.
    """
    too_large = case_oracle.operator.work(case_oracle.case).pairs > PAIRS
    if isinstance(observation, Agree):
        # Misread strides are no fault model.
        right = only is None and not too_large and _is_right_if_contiguous(observation, case_oracle, policies)
        return StridesMisread() if right else None
    if isinstance(observation, Exact):
        observation = Match(quantities=observation.quantities)
    if not isinstance(observation, Match | Average) or (isinstance(observation, Match) and observation.changed):
        return None
    names = {observation.quantity} if isinstance(observation, Average) else observation.quantities.keys()
    if not names <= expected.quantities.keys():
        return None
    if too_large:
        return NotDiagnosed(limit=PAIRS)
    faults = _FaultSearch(observation, names, expected, case_oracle, policies).find_faults(only)
    if not faults:
        return None
    nearest = min(faults, key=lambda fault: fault.remaining)
    same = [
        Fault(model=_make_phrase(fault.model), acts=fault.acts, of_mask=fault.model.of_mask)
        for fault in faults
        if fault.remaining <= 1 or not _differ(fault.quantities, nearest.quantities, names, expected.allowances)
    ]
    return LooksLike(faults=tuple(same))


def find_fitting_scales(off: float, quantity: str, case_oracle: CaseOracle) -> tuple[Phrase, ...]:
    """Return the fault models that change the softmax scale by the factor 1 + ``off``, within 10 %."""
    models = case_oracle.operator.fault_models(case_oracle.case, {quantity})
    return tuple(_make_phrase(model) for model in models if model.scale and abs((1 + off) / model.scale - 1) <= AGREES)


def _make_phrase(model: FaultModel) -> Phrase:
    """Return the phrase by which facts identify a fault model."""
    return Phrase(key=model.name, values=dict(model.values))


def _is_right_if_contiguous(observation: Agree, case_oracle: CaseOracle, policies: Policies) -> bool:
    """Whether a run with contiguous tensors gave what the oracle gives for these tensors."""
    if observation.contiguous is None:
        return False
    expected = case_oracle.compute_with_tensors(observation.contiguous)
    right = Match(quantities={observation.quantity: observation.expected}, any_dtype=True)
    return not any(one.facts for one in compare(right, expected, case_oracle, policies))


class _FaultSearch:
    """The search among the fault models of a case for those that explain one failed observation."""

    def __init__(
        self,
        observation: Match | Average,
        names: Collection[str],
        expected: Expected,
        case_oracle: CaseOracle,
        policies: Policies,
    ) -> None:
        self.observation = observation
        self.names = names
        self.expected = expected
        self.case_oracle = case_oracle
        self.policies = policies
        gradients = any(name.startswith("grad.") for name in names)
        # The fault models compute gradients only if the observation contains gradients.
        self.case = case_oracle.case if gradients else case_oracle.case.with_fields(mode="inference")
        self.keep = observation.keep if isinstance(observation, Match) else None
        # The outputs of the pass whose gradients are observed.
        self.outputs: dict[str, Tensor] = {}
        if gradients and isinstance(observation, Match):
            given = {**observation.outputs, **observation.quantities}
            self.outputs = {name: value for name, value in given.items() if not name.startswith("grad.")}

    def find_faults(self, only: Collection[str] | None) -> list[_MatchingFault]:
        """Return the fault models that explain the failure; ``only`` has the names of those to try, None: all.

        If a fault model explains the gradients and the outputs, fault models of the gradients alone are left out.
        """
        values = self.observation.quantities if isinstance(self.observation, Match) else {}
        whole = self._measure(values, self.expected.quantities, self.expected.allowances)
        fault_models = self.case_oracle.operator.fault_models(self.case_oracle.case, self.names)
        tried = [model for model in fault_models if only is None or model.name in only]
        outputs_right = (
            not self.outputs or self._measure(self.outputs, self.expected.quantities, self.expected.allowances) <= 1
        )
        found = [
            self._match_fault(model, whole) for model in tried if outputs_right or self._fits_outputs(model, whole)
        ]
        faults = [fault for fault in found if fault is not None]
        return [fault for fault in faults if fault.acts != "backward_alone"] or faults

    def _fits_outputs(self, model: FaultModel, whole: float) -> bool:
        """Whether a fault model explains the outputs of the pass, for which it needs no gradients."""
        forward = self.case_oracle.case.with_fields(mode="inference")
        quantities = self.case_oracle.evaluate_fault_model(model, forward, self.keep)
        return self._measure_with_noise(model, self.outputs, quantities, whole) <= min(LOOSE, EXPLAINED * whole)

    def _match_fault(self, model: FaultModel, whole: float) -> _MatchingFault | None:
        """Return how a fault model explains the failure, or None; it explains the outputs if these are wrong."""
        quantities = self.case_oracle.evaluate_fault_model(model, self.case, self.keep)
        values = self.observation.quantities if isinstance(self.observation, Match) else {}
        gradients = {name: value for name, value in values.items() if name not in self.outputs}
        limit = min(LOOSE, EXPLAINED * whole)
        remaining = self._measure_with_noise(model, gradients, quantities, whole)
        if remaining > limit or self._fits_by_chance(quantities):
            return None
        acts: Acts = "pass"
        if self._measure_with_noise(model, self.outputs, quantities, whole) > limit:
            acts = "backward_alone"
        elif self.outputs and not model.of_backward and not self._changes_outputs(quantities):
            acts = "backward_at_least"
        return _MatchingFault(model=model, acts=acts, remaining=remaining, quantities=quantities)

    def _changes_outputs(self, quantities: Mapping[str, Tensor]) -> bool:
        names = self.outputs.keys() & quantities.keys()
        return _differ(quantities, self.expected.quantities, names, self.expected.allowances)

    def _measure_with_noise(
        self,
        model: FaultModel,
        values: Mapping[str, Tensor],
        quantities: Mapping[str, Tensor],
        whole: float,
    ) -> float:
        """Return the error against a fault model, as a multiple of the allowed error.

        If the error is above ``LOOSE``, but promising (see ``PROMISING``), the allowed error is that of the formula
        with the fault.
        """
        remaining = self._measure(values, quantities, self.expected.allowances)
        if not LOOSE < remaining < PROMISING * whole:
            return remaining
        noisy = self.case_oracle.evaluate_fault_model(model, self.case, self.keep, noisy=True)
        names = values or self.names
        return self._measure(
            values, quantities, {name: self._widen_allowance(name, quantities, noisy) for name in names}
        )

    def _measure(
        self, values: Mapping[str, Tensor], quantities: Mapping[str, Tensor], allowances: Mapping[str, Allowance]
    ) -> float:
        """Return the error of ``values``, or of an observed mean, against ``quantities``.

        Unit: multiples of the allowed error.
        """
        if isinstance(self.observation, Average):
            faulty = Expected(quantities=dict(quantities), allowances=dict(allowances), hidden_rows={})
            (found,) = compare(self.observation, faulty, self.case_oracle, self.policies)
            return math.inf if found.measured is None or math.isnan(found.share) else found.share
        return max(
            (
                _largest_difference(
                    replace_declared_nan(name, value, quantities[name], self.expected, self.policies), quantities[name]
                )
                / allowances[name].allowed
                for name, value in values.items()
            ),
            default=0.0,
        )

    def _widen_allowance(self, name: str, quantities: Mapping[str, Tensor], noisy: Mapping[str, Tensor]) -> Allowance:
        allowance = self.expected.allowances[name]
        model = FACTOR / allowance.factor * largest_error(noisy[name], quantities[name])
        return replace(allowance, model=max(allowance.model, model))

    def _fits_by_chance(self, quantities: Mapping[str, Tensor]) -> bool:
        """Whether the observed values may fit a fault model by chance, although another fault caused them.

        An observed mean has errors of many elements, so it never counts as chance.
        """
        if isinstance(self.observation, Average):
            return False
        output = self.case_oracle.operator.outputs[0]
        chance = sum(
            log_chance_of_fit(
                value,
                quantities[name],
                self.expected.quantities[name],
                allowed=self.expected.allowances[name].allowed,
                blank=self.case_oracle.output_without_values if name == output else None,
            )
            for name, value in self.observation.quantities.items()
        )
        return chance > math.log(COINCIDENCE)


def _largest_difference(value: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference of two tensors.

    It is infinite if the shapes, or the positions of NaN and infinity, differ.
    """
    if value.shape != expected.shape:
        return math.inf
    value = value.double()
    difference = torch.where(value.isnan() & expected.isnan() | (value == expected), 0.0, (value - expected).abs())
    return float(difference.nan_to_num(math.inf).max()) if difference.numel() else 0.0


def _differ(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor], names: Collection[str], allowances: Mapping[str, Allowance]
) -> bool:
    """Whether two results differ by more than the allowance in any of the quantities ``names``."""
    return any(
        one[name].shape != other[name].shape
        or not bool((one[name].isfinite() == other[name].isfinite()).all())
        or largest_error(one[name], other[name]) > allowances[name].allowed
        for name in names
    )
