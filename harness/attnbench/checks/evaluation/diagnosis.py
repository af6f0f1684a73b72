"""Why a claim failed: which known mistake in the oracle's formula gives what the implementation gave."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnbench.checks.evaluation.measurement import verdicts
from attnbench.checks.observations import Average, Exact, Match, Observation
from attnbench.interface import Policies
from attnbench.oracle.error_budget import FACTOR, Allowance, largest_error
from attnbench.oracle.expected import CaseOracle, Expected

__all__ = ["diagnosis"]

# Times what rounding is allowed that a result may be away from that of a mistake.
LOOSE = 2.0
# A mistake explains a failure where at most this share of the error is left.
EXPLAINED = 0.5
# Where less than this share is left, it is looked at what rounding costs under the mistake: larger logits cost more.
PROMISING = 1 / 16
# Query-key pairs beyond which a few dozen evaluations of the oracle cost more than their answer is worth.
PAIRS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspect:
    """A mistake whose result the implementation's is near."""

    words: str
    # Error left as a share of what was allowed.
    left: float
    quantities: Mapping[str, Tensor]


def diagnosis(observation: Observation, truth: Expected, known: CaseOracle, policies: Policies) -> str:
    """Sentence that names the mistake that a failed claim looks like, or nothing.

    Several that give the same result on this case are all named.
    """
    if isinstance(observation, Exact):
        observation = Match(quantities=observation.quantities)
    if not isinstance(observation, Match | Average) or known.operator.work(known.case).pairs > PAIRS:
        return ""
    names = {observation.quantity} if isinstance(observation, Average) else observation.quantities.keys()
    if not names <= truth.quantities.keys():
        return ""
    suspects = _Lineup(observation, names, truth, known, policies).suspects()
    if not suspects:
        return ""
    nearest = min(suspects, key=lambda suspect: suspect.left)
    same = [s.words for s in suspects if not _apart(s.quantities, nearest.quantities, names, truth.allowances)]
    return f"Diagnosis: looks like {' or '.join(same)}."


class _Lineup:
    """Known mistakes beside one failed claim."""

    def __init__(
        self,
        observation: Match | Average,
        names: Collection[str],
        truth: Expected,
        known: CaseOracle,
        policies: Policies,
    ) -> None:
        self.observation = observation
        self.names = names
        self.truth = truth
        self.known = known
        self.policies = policies
        gradients = any(name.startswith("grad.") for name in names)
        # Without gradients in the claim none need to be computed.
        self.case = known.case if gradients else known.case.with_fields(mode="inference")
        self.keep = observation.keep if isinstance(observation, Match) else None

    def suspects(self) -> list[_Suspect]:
        """Mistakes that explain the failure."""
        whole = self._left(self.truth.quantities, self.truth.allowances)
        fault_models = self.known.operator.fault_models(self.known.case, self.names)
        found = (self._suspect(words, fault, whole) for words, fault in fault_models.items())
        return [suspect for suspect in found if suspect is not None]

    def _suspect(self, words: str, fault: object, whole: float) -> _Suspect | None:
        quantities = self.known.mistaken(words, fault, self.case, self.keep)
        left = self._left(quantities, self.truth.allowances)
        if left > LOOSE and left < PROMISING * whole:
            noisy = self.known.mistaken(words, fault, self.case, self.keep, noisy=True)
            left = self._left(quantities, {name: self._allowance(name, quantities, noisy) for name in self.names})
        if left > min(LOOSE, EXPLAINED * whole) or self._cut(quantities):
            return None
        return _Suspect(words=words, left=left, quantities=quantities)

    def _left(self, quantities: Mapping[str, Tensor], allowances: Mapping[str, Allowance]) -> float:
        """Error of the claim where these quantities are taken for right, as a share of what is allowed."""
        if isinstance(self.observation, Average):
            mistaken = Expected(quantities=dict(quantities), allowances=dict(allowances), hidden_rows={})
            (found,) = verdicts(self.observation, mistaken, self.known, self.policies)
            return math.inf if found.measured is None else found.share
        return max(
            _off(self._excused(name, value, quantities[name]), quantities[name]) / allowances[name].allowed
            for name, value in self.observation.quantities.items()
        )

    def _excused(self, name: str, value: Tensor, expected: Tensor) -> Tensor:
        """The value without the NaN that is declared of rows without any key."""
        rows = self.truth.hidden_rows.get(name)
        if self.policies.hidden_rows != "nan" or rows is None or value.shape != expected.shape:
            return value
        return torch.where(rows & value.isnan(), expected.to(value.dtype), value)

    def _allowance(self, name: str, quantities: Mapping[str, Tensor], noisy: Mapping[str, Tensor]) -> Allowance:
        allowance = self.truth.allowances[name]
        model = FACTOR / allowance.factor * largest_error(noisy[name], quantities[name])
        return replace(allowance, model=max(allowance.model, model))

    def _cut(self, quantities: Mapping[str, Tensor]) -> bool:
        """Whether the claim is NaN all over, or a gradient of nothing but zeros, where the mistake shows.

        Many a mistake looks like that.
        """
        if isinstance(self.observation, Average):
            return False
        differing = [
            name for name in self.names if _apart(quantities, self.truth.quantities, [name], self.truth.allowances)
        ]
        return not any(_tells(name, self.observation.quantities[name]) for name in differing)


def _off(value: Tensor, expected: Tensor) -> float:
    """Largest error; infinite where shapes differ, or NaN and infinity are elsewhere."""
    if value.shape != expected.shape:
        return math.inf
    value = value.double()
    difference = torch.where(value.isnan() & expected.isnan() | (value == expected), 0.0, (value - expected).abs())
    return float(difference.nan_to_num(math.inf).max()) if difference.numel() else 0.0


def _tells(name: str, value: Tensor) -> bool:
    finite = value.isfinite()
    return bool((finite & (value != 0)).any() if name.startswith("grad.") else finite.any())


def _apart(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor], names: Collection[str], allowances: Mapping[str, Allowance]
) -> bool:
    """Whether two results differ by more than rounding in one of these quantities."""
    return any(
        one[name].shape != other[name].shape
        or not bool((one[name].isfinite() == other[name].isfinite()).all())
        or largest_error(one[name], other[name]) > allowances[name].allowed
        for name in names
    )
