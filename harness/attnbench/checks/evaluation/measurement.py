"""Measuring what a check observed against what is right: a verdict for each quantity of a claim."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.checks.evaluation.explanation import index_of, place, share, shared
from attnbench.checks.observations import Agree, Average, Equal, Exact, Holds, Match, Observation, Scale
from attnbench.interface import Axis, Policies
from attnbench.oracle.error_budget import TWO_RUNS, allowed_of_a_probe, along, rounding_of_a_whole
from attnbench.oracle.expected import CaseOracle, Expected

__all__ = ["Verdict", "verdicts"]

# Standard errors that the mean over draws of an element may be off; elements are skewed and many, hence more than the
# usual six.
STANDARD_ERRORS = 8.0
# Standard errors that the amplitude of the mean over all elements may be off.
POOLED_STANDARD_ERRORS = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one comparison came to; ``fault`` is empty where it held."""

    fault: str = ""
    measured: float | None = None
    allowed: float | None = None

    @property
    def share(self) -> float:
        """Error as a share of what was allowed."""
        if self.measured is None or self.allowed is None:
            return 0.0
        if self.allowed == 0:
            return math.inf if self.measured else 0.0
        return self.measured / self.allowed


def verdicts(observation: Observation, truth: Expected, known: CaseOracle, policies: Policies) -> list[Verdict]:
    """Verdicts on a claim about a case; ``truth`` is what its quantities are compared with."""
    match observation:
        case Match():
            return [_matches(name, observation, truth, known, policies) for name in observation.quantities]
        case Exact():
            return [_exact(name, value, truth, known) for name, value in observation.quantities.items()]
        case Scale():
            return [_scale(observation, truth, known)]
        case Equal():
            return [_equal(observation)]
        case Agree():
            allowance = truth.allowances[observation.quantity]
            allowed, origin = TWO_RUNS * allowance.allowed, f"twice {allowance.origin()}"
            axes = _axes(observation.quantity, observation.value, known)
            return [
                _within(observation.what, observation.value, observation.expected, axes, allowed=allowed, origin=origin)
            ]
        case Average():
            return [_average(observation, truth, known)]
        case Holds():
            fault = "" if observation.holds else f"But {observation.what}."
            return [Verdict(fault=fault, measured=observation.measured, allowed=observation.allowed)]


def _axes(quantity: str, value: Tensor, known: CaseOracle) -> Sequence[Axis]:
    """Axes of a quantity, where the value has the shape that they are of."""
    expected = known.truth.quantities.get(quantity)
    fits = expected is not None and value.shape == expected.shape
    return known.operator.axes(known.case, quantity) if fits else ()


def _matches(name: str, observation: Match, truth: Expected, known: CaseOracle, policies: Policies) -> Verdict:
    value, expected = observation.quantities[name], truth.quantities.get(name)
    if expected is None:
        return Verdict(fault=f"But there is no {name} in this case.")
    wanted = known.gradient_dtype if name.startswith("grad.") else known.dtype
    if value.dtype != wanted and not observation.any_dtype:
        return Verdict(fault=f"But {name} has dtype {_plain(value.dtype)}, must be {_plain(wanted)}.")
    rows = truth.hidden_rows.get(name)
    if rows is not None and policies.hidden_rows == "nan" and value.shape == expected.shape:
        # Declared: a row from which every key is hidden is NaN.
        expected = expected.masked_fill(rows, math.nan)
    allowance, axes = truth.allowances[name], _axes(name, value, known)
    return _within(name, value, expected, axes, allowed=allowance.allowed, origin=allowance.origin())


def _exact(name: str, value: Tensor, truth: Expected, known: CaseOracle) -> Verdict:
    expected = truth.quantities[name].to(known.dtype)
    return _equal(Equal(value=value, expected=expected, what=name), _axes(name, value, known))


def _scale(observation: Scale, truth: Expected, known: CaseOracle) -> Verdict:
    """Rounding averages out over elements; a scale that is off does not."""
    expected, name = truth.quantities[observation.quantity], observation.quantity
    if observation.value.shape != expected.shape:
        return _misshapen(name, observation.value, expected)
    found = []
    for what, probe in known.probes(name).items():
        off = along(observation.value, expected, probe.direction)
        allowed = allowed_of_a_probe(
            known.precision, gradient=name.startswith("grad."), elements=expected.numel(), model=probe.model
        )
        fault = f"But the {what} that {name} shows is off by {off:+.3g}; allowed {allowed:.3g}."
        found.append(Verdict(fault="" if abs(off) <= allowed else fault, measured=abs(off), allowed=allowed))
    # A NaN is worse than any number.
    return max(found, key=lambda one: (math.isnan(one.share), one.share), default=Verdict())


def _within(
    what: str, value: Tensor, expected: Tensor, axes: Sequence[Axis], *, allowed: float, origin: str
) -> Verdict:
    """Shape first, then NaN and infinity where they belong, then values."""
    if value.shape != expected.shape:
        return _misshapen(what, value, expected)
    value, expected = value.double(), expected.double()
    # Two numbers that are not finite are the same only if both are NaN, or the same infinity.
    strange = ~((value.isfinite() & expected.isfinite()) | (value == expected) | (value.isnan() & expected.isnan()))
    first = _first(strange)
    if first is not None:
        return Verdict(
            fault=f"But {what} is {value[first]:g} at {place(first, axes)}, must be {expected[first]:g} "
            f"({share(int(strange.sum()), value.numel())} wrongly finite or not{shared(strange, axes)})."
        )
    error = torch.where(expected.isfinite(), (value - expected).abs(), 0.0)
    measured = float(error.max()) if error.numel() else 0.0
    if measured <= allowed:
        return Verdict(measured=measured, allowed=allowed)
    worst, wrong = index_of(int(error.argmax()), error.shape), error > allowed
    return Verdict(
        fault=f"But {share(int(wrong.sum()), error.numel())} of {what} are off{shared(wrong, axes)}; "
        f"the worst by {measured:.3g} at {place(worst, axes)} ({value[worst]:.6g}, must be {expected[worst]:.6g}); "
        f"allowed {allowed:.3g} = {origin}.",
        measured=measured,
        allowed=allowed,
    )


def _equal(observation: Equal, axes: Sequence[Axis] = ()) -> Verdict:
    value, expected = observation.value, observation.expected
    if value.shape != expected.shape or value.dtype != expected.dtype:
        return Verdict(fault=f"But {observation.what} has another shape or dtype.")
    # Bits, not values: NaN equals itself here.
    differs = (
        ~((value == expected) | (value.isnan() & expected.isnan())) if value.is_floating_point() else value != expected
    )
    first = _first(differs)
    if first is None:
        return Verdict(measured=0.0, allowed=0.0)
    difference = float((value.double() - expected.double())[differs].abs().max())
    return Verdict(
        fault=f"But {share(int(differs.sum()), value.numel())} of {observation.what} differ{shared(differs, axes)}, "
        f"the first at {place(first, axes)}: {value[first].item():.6g}, must be exactly {expected[first].item():.6g}.",
        measured=difference,
        allowed=0.0,
    )


def _average(observation: Average, truth: Expected, known: CaseOracle) -> Verdict:
    """Each element of the mean, and its amplitude as a whole, which shows what is too little for any one of them."""
    name, expected, allowance = (
        observation.quantity,
        truth.quantities[observation.quantity],
        truth.allowances[observation.quantity],
    )
    if observation.mean.shape != expected.shape:
        return _misshapen(name, observation.mean, expected)
    if not bool(observation.std.any()):
        return Verdict(fault=f"But {observation.draws} draws gave the same {name}: nothing was dropped.")
    off, standard_error = (
        observation.mean - expected,
        (observation.std / math.sqrt(observation.draws)).clamp(min=allowance.floor),
    )
    # What rounding may cost is no bias.
    scores = (off.abs() - allowance.allowed).clamp(min=0) / standard_error
    score, said = float(scores.max()), f"But the mean of {observation.draws} draws of {name}"
    worst = place(index_of(int(scores.argmax()), scores.shape), _axes(name, observation.mean, known))
    fault = f"{said} is {score:.1f} standard errors off at {worst}; allowed {STANDARD_ERRORS:g}."
    element = Verdict(fault="" if score <= STANDARD_ERRORS else fault, measured=score, allowed=STANDARD_ERRORS)
    signal = expected - known.dropped[name]
    signal = signal.masked_fill(signal.abs() <= allowance.allowed, 0.0)
    amplitude, error = _amplitude(off, signal, standard_error)
    pooled = max(abs(amplitude) - rounding_of_a_whole(known.precision), 0.0) / error if error else 0.0
    fault = (
        f"{said} is {amplitude:+.1%} off as a whole in what dropout acts on, which is {pooled:.1f} standard errors; "
        f"allowed {POOLED_STANDARD_ERRORS:g}."
    )
    whole = Verdict(
        fault="" if pooled <= POOLED_STANDARD_ERRORS else fault, measured=pooled, allowed=POOLED_STANDARD_ERRORS
    )
    return whole if whole.fault and score <= STANDARD_ERRORS else element


def _amplitude(off: Tensor, signal: Tensor, standard_error: Tensor) -> tuple[float, float]:
    """By which share of the signal a mean is off as a whole, with its standard error.

    Rows draw apart from one another; the elements of a row share its draws, so that of each row only the one counts
    that shows most.
    """
    off, signal, standard_error = (tensor.flatten(0, -2) for tensor in (off, signal, standard_error))
    best = (signal / standard_error).abs().argmax(dim=-1, keepdim=True)
    off, signal, standard_error = (tensor.gather(-1, best) for tensor in (off, signal, standard_error))
    # Divided before they are multiplied: the square of a tiny standard error is zero.
    off, signal = off / standard_error, signal / standard_error
    precision = float((signal**2).sum())
    if not precision:
        return 0.0, 0.0
    return float((off * signal).sum()) / precision, 1 / math.sqrt(precision)


def _misshapen(what: str, value: Tensor, expected: Tensor) -> Verdict:
    return Verdict(fault=f"But {what} has shape {tuple(value.shape)}, must be {tuple(expected.shape)}.")


def _first(where: Tensor) -> tuple[int, ...] | None:
    """Index of the first true element, or None."""
    return index_of(int(where.flatten().int().argmax()), where.shape) if bool(where.any()) else None


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
