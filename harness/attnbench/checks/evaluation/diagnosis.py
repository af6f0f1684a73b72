"""Diagnosing a failure: find the fault models that reproduce what the implementation returned.

A fault model is a known mistake with which the oracle evaluates its formula, such as an ignored mask.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnbench.checks.evaluation.measurement import compare
from attnbench.checks.observations import Average, Exact, Match, Observation
from attnbench.interface import Policies
from attnbench.oracle.error_budget import FACTOR, Allowance, largest_error
from attnbench.oracle.expected import CaseOracle, Expected

__all__ = ["diagnose"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _MatchingFault:
    """A fault model whose result is close to what the implementation returned."""

    description: str
    # Error of the observed values against the fault model's values, as a multiple of the allowed error.
    remaining: float
    quantities: Mapping[str, Tensor]


def diagnose(observation: Observation, expected: Expected, case_oracle: CaseOracle, policies: Policies) -> str:
    """Return a sentence that names the fault model behind a failed observation, or an empty string.

    If several fault models give the same result on this case, the sentence names all of them.
    """
    if isinstance(observation, Exact):
        observation = Match(quantities=observation.quantities)
    if not isinstance(observation, Match | Average) or case_oracle.operator.work(case_oracle.case).pairs > PAIRS:
        return ""
    names = {observation.quantity} if isinstance(observation, Average) else observation.quantities.keys()
    if not names <= expected.quantities.keys():
        return ""
    faults = _FaultSearch(observation, names, expected, case_oracle, policies).find_faults()
    if not faults:
        return ""
    nearest = min(faults, key=lambda fault: fault.remaining)
    same = [
        fault.description
        for fault in faults
        if not _differ(fault.quantities, nearest.quantities, names, expected.allowances)
    ]
    return f"Diagnosis: looks like {' or '.join(same)}."


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

    def find_faults(self) -> list[_MatchingFault]:
        """Return the fault models that explain the failure."""
        whole = self._measure_remaining_error(self.expected.quantities, self.expected.allowances)
        fault_models = self.case_oracle.operator.fault_models(self.case_oracle.case, self.names)
        found = (self._match_fault(description, fault, whole) for description, fault in fault_models.items())
        return [fault for fault in found if fault is not None]

    def _match_fault(self, description: str, fault: object, whole: float) -> _MatchingFault | None:
        quantities = self.case_oracle.evaluate_fault_model(description, fault, self.case, self.keep)
        remaining = self._measure_remaining_error(quantities, self.expected.allowances)
        if remaining > LOOSE and remaining < PROMISING * whole:
            noisy = self.case_oracle.evaluate_fault_model(description, fault, self.case, self.keep, noisy=True)
            remaining = self._measure_remaining_error(
                quantities, {name: self._widen_allowance(name, quantities, noisy) for name in self.names}
            )
        if remaining > min(LOOSE, EXPLAINED * whole) or self._is_uninformative(quantities):
            return None
        return _MatchingFault(description=description, remaining=remaining, quantities=quantities)

    def _measure_remaining_error(self, quantities: Mapping[str, Tensor], allowances: Mapping[str, Allowance]) -> float:
        """Return the error of the observation against ``quantities``, as a multiple of the allowed error."""
        if isinstance(self.observation, Average):
            faulty = Expected(quantities=dict(quantities), allowances=dict(allowances), hidden_rows={})
            (found,) = compare(self.observation, faulty, self.case_oracle, self.policies)
            return math.inf if found.measured is None else found.share
        return max(
            _largest_difference(self._replace_declared_nan(name, value, quantities[name]), quantities[name])
            / allowances[name].allowed
            for name, value in self.observation.quantities.items()
        )

    def _replace_declared_nan(self, name: str, value: Tensor, expected: Tensor) -> Tensor:
        """Replace NaN in fully masked rows by expected values, if the policies declare that these rows are NaN."""
        rows = self.expected.hidden_rows.get(name)
        declared = self.policies.hidden_row_gradients if name.startswith("grad.") else self.policies.hidden_rows
        if declared != "nan" or rows is None or value.shape != expected.shape:
            return value
        return torch.where(rows & value.isnan(), expected.to(value.dtype), value)

    def _widen_allowance(self, name: str, quantities: Mapping[str, Tensor], noisy: Mapping[str, Tensor]) -> Allowance:
        allowance = self.expected.allowances[name]
        model = FACTOR / allowance.factor * largest_error(noisy[name], quantities[name])
        return replace(allowance, model=max(allowance.model, model))

    def _is_uninformative(self, quantities: Mapping[str, Tensor]) -> bool:
        """Whether the observed values support no diagnosis.

        This holds if every quantity that the fault model changes was observed without finite
        elements, or is a gradient of zeros. Many different mistakes give such values.
        """
        if isinstance(self.observation, Average):
            return False
        differing = [
            name
            for name in self.names
            if _differ(quantities, self.expected.quantities, [name], self.expected.allowances)
        ]
        return not any(_is_informative(name, self.observation.quantities[name]) for name in differing)


def _largest_difference(value: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference of two tensors.

    It is infinite if the shapes, or the positions of NaN and infinity, differ.
    """
    if value.shape != expected.shape:
        return math.inf
    value = value.double()
    difference = torch.where(value.isnan() & expected.isnan() | (value == expected), 0.0, (value - expected).abs())
    return float(difference.nan_to_num(math.inf).max()) if difference.numel() else 0.0


def _is_informative(name: str, value: Tensor) -> bool:
    """Whether any element is finite; for a gradient, whether any element is finite and not zero."""
    finite = value.isfinite()
    return bool((finite & (value != 0)).any() if name.startswith("grad.") else finite.any())


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
