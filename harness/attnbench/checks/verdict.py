"""Judging claims against the oracle: one finding per check, with numbers that can be read without its source."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.budget import TWO_RUNS, Allowance
from attnbench.checks.claims import Agree, Average, Claim, Equal, Holds, Match
from attnbench.interface import Policies
from attnbench.records import Finding

__all__ = ["Truth", "judge"]

# Standard errors that a mean over draws may be off; elements are skewed and many, hence more than the usual six.
STANDARD_ERRORS = 8.0
# A passing error beyond this share of what is allowed is worth a look.
NOTEWORTHY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the oracle says of a case."""

    quantities: dict[str, Tensor]
    allowances: dict[str, Allowance]
    # For each output, where it belongs to a row from which every key is hidden.
    hidden_rows: dict[str, Tensor]
    # The case's dtype, which outputs must have.
    dtype: torch.dtype
    # The same with a dropout mask.
    given: Callable[[Tensor], "Truth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
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


def judge(check: str, requirement: str, claims: list[Claim], truth: Truth, policies: Policies) -> Finding:
    """Finding of one check from its claims: failed with the first fault, else passed with the largest share used."""
    verdicts = [verdict for claim in claims for verdict in _verdicts(claim, truth, policies)]
    faults = [v for v in verdicts if v.fault]
    worst = max(faults or verdicts, key=lambda v: v.share, default=_Verdict())
    if faults:
        worst = faults[0] if faults[0].measured is None else worst
        return Finding(
            check=check,
            status="failed",
            reason=f"{requirement} {worst.fault}",
            measured=worst.measured,
            allowed=worst.allowed,
        )
    near = f"uses {worst.share:.0%} of the error allowed" if worst.share > NOTEWORTHY else ""
    return Finding(
        check=check,
        status="passed",
        measured=worst.measured,
        allowed=worst.allowed,
        warnings=(near,) if near else (),
    )


def _verdicts(claim: Claim, truth: Truth, policies: Policies) -> list[_Verdict]:
    match claim:
        case Match():
            known = truth if claim.keep is None else truth.given(claim.keep)
            return [_matches(name, value, known, policies) for name, value in claim.quantities.items()]
        case Equal():
            return [_equal(claim)]
        case Agree():
            allowance = truth.allowances[claim.quantity]
            allowed, origin = TWO_RUNS * allowance.allowed, f"twice {allowance.origin()}"
            return [_within(claim.what, claim.value, claim.expected, allowed=allowed, origin=origin)]
        case Average():
            return [_average(claim, truth)]
        case Holds():
            fault = "" if claim.holds else f"But {claim.what}."
            return [_Verdict(fault=fault, measured=claim.measured, allowed=claim.allowed)]


def _matches(name: str, value: Tensor, truth: Truth, policies: Policies) -> _Verdict:
    expected = truth.quantities.get(name)
    if expected is None:
        return _Verdict(fault=f"But there is no {name} in this case.")
    if value.dtype != truth.dtype:
        return _Verdict(fault=f"But {name} has dtype {_plain(value.dtype)}, must be {_plain(truth.dtype)}.")
    rows = truth.hidden_rows.get(name)
    if rows is not None and policies.hidden_rows == "nan" and value.shape == expected.shape:
        # Declared: a row from which every key is hidden is NaN.
        expected = expected.masked_fill(rows, math.nan)
    allowance = truth.allowances[name]
    return _within(name, value, expected, allowed=allowance.allowed, origin=allowance.origin())


def _within(what: str, value: Tensor, expected: Tensor, *, allowed: float, origin: str) -> _Verdict:
    """Shape first, then NaN and infinity where they belong, then values."""
    if value.shape != expected.shape:
        return _Verdict(fault=f"But {what} has shape {tuple(value.shape)}, must be {tuple(expected.shape)}.")
    value, expected = value.double(), expected.double()
    # Two numbers that are not finite are the same only if both are NaN, or the same infinity.
    same = (value.isfinite() & expected.isfinite()) | (value == expected) | (value.isnan() & expected.isnan())
    strange = _first(~same)
    if strange is not None:
        return _Verdict(
            fault=f"But {what} is {value[strange]:g} at index {strange}, must be {expected[strange]:g} "
            f"({_share(int((~same).sum()), value.numel())} wrongly finite or not)."
        )
    error = torch.where(expected.isfinite(), (value - expected).abs(), 0.0)
    if error.numel() == 0:
        return _Verdict(measured=0.0, allowed=allowed)
    measured = float(error.max())
    if measured <= allowed:
        return _Verdict(measured=measured, allowed=allowed)
    worst = _index(int(error.argmax()), error.shape)
    wrong = int((error > allowed).sum())
    return _Verdict(
        fault=f"But {_share(wrong, error.numel())} of {what} are off; the worst by {measured:.3g} at index {worst} "
        f"({value[worst]:.6g}, must be {expected[worst]:.6g}); allowed {allowed:.3g} = {origin}.",
        measured=measured,
        allowed=allowed,
    )


def _equal(claim: Equal) -> _Verdict:
    value, expected = claim.value, claim.expected
    if value.shape != expected.shape or value.dtype != expected.dtype:
        return _Verdict(fault=f"But {claim.what} has another shape or dtype.")
    # Bits, not values: NaN equals itself here.
    differs = (
        ~((value == expected) | (value.isnan() & expected.isnan())) if value.is_floating_point() else value != expected
    )
    place = _first(differs)
    if place is None:
        return _Verdict(measured=0.0, allowed=0.0)
    difference = float((value.double() - expected.double())[differs].abs().max())
    return _Verdict(
        fault=f"But {_share(int(differs.sum()), value.numel())} of {claim.what} differ, the first at index {place}: "
        f"{value[place].item():.6g}, must be exactly {expected[place].item():.6g}.",
        measured=difference,
        allowed=0.0,
    )


def _average(claim: Average, truth: Truth) -> _Verdict:
    expected, allowance = truth.quantities[claim.quantity], truth.allowances[claim.quantity]
    if claim.mean.shape != expected.shape:
        return _Verdict(
            fault=f"But {claim.quantity} has shape {tuple(claim.mean.shape)}, must be {tuple(expected.shape)}."
        )
    if not bool(claim.std.any()):
        return _Verdict(fault=f"But {claim.draws} draws gave the same {claim.quantity}: nothing was dropped.")
    standard_error = claim.std / math.sqrt(claim.draws)
    scores = ((claim.mean - expected).abs() - allowance.allowed).clamp(min=0) / standard_error.clamp(
        min=allowance.floor
    )
    score = float(scores.max())
    fault = (
        f"But the mean of {claim.draws} draws of {claim.quantity} is {score:.1f} standard errors off at index "
        f"{_index(int(scores.argmax()), scores.shape)}; allowed {STANDARD_ERRORS:g}."
    )
    return _Verdict(fault=fault if not score <= STANDARD_ERRORS else "", measured=score, allowed=STANDARD_ERRORS)


def _first(where: Tensor) -> tuple[int, ...] | None:
    """Index of the first true element, or None."""
    return _index(int(where.flatten().int().argmax()), where.shape) if bool(where.any()) else None


def _index(flat: int, shape: torch.Size) -> tuple[int, ...]:
    index = []
    for extent in reversed(shape):
        flat, position = divmod(flat, extent)
        index.append(position)
    return tuple(reversed(index))


def _share(count: int, total: int) -> str:
    return f"{count} of {total} elements ({count / max(total, 1):.1%})"


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
