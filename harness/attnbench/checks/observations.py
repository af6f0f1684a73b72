"""Observations: what a check recorded about tensors. This module defines all types of observation.

A check runs in the process of the implementation and only records. The package ``evaluation`` compares observations
with the expected values; it runs in the oracle worker, a process that loads no implementation.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
from torch import Tensor

from attnbench.records.value_facts import Phrase, PolicyDeviation, Rows

__all__ = [
    "Agree",
    "Average",
    "Equal",
    "Exact",
    "Holds",
    "Match",
    "Observation",
    "RowSum",
    "Scale",
    "Slope",
    "deserialize",
    "serialize",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Quantities (outputs, weights or gradients) must equal the oracle's within the error budget."""

    quantities: dict[str, Tensor]
    # How the call differs from the plain call of the case; None: it does not.
    how: Phrase | str | None = None
    # The dropout mask that the implementation drew, true where a weight is kept. None: the expected values have no
    # dropout.
    keep: Tensor | None = None
    # Whether the quantities may have any dtype, as attention weights may under autocast.
    any_dtype: bool = False
    # If the quantities are gradients: the outputs of the same pass. They are not compared here, but a diagnosis of
    # wrong gradients must agree with these outputs.
    outputs: dict[str, Tensor] = field(default_factory=dict)
    # Tensors whose values differ from the case's: ``parameter.<name>``, ``cotangent.<output>``, or an input's name.
    changed: dict[str, Tensor] = field(default_factory=dict)
    # Whether the changed values were drawn for one call, so that no other observation and no later run has them.
    drawn_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Quantities must equal the oracle's bit for bit, on inputs for which no rounding can occur."""

    quantities: dict[str, Tensor]
    # Number of keys over which the quantities are means of values between −1 and 1. The error of joining partial means
    # is then allowed. 0: the quantities are no means, and no error is allowed.
    mean_over: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The softmax scale and the amplitude, fitted over all elements of a quantity, must equal the oracle's."""

    quantity: str
    value: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """Two values of a quantity must be equal bit for bit."""

    value: Tensor
    expected: Tensor
    quantity: str
    # How the calls differ that gave the two values; the text of a plug-in's check is shown as it is.
    how: Phrase | str | None
    rows: Rows = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agree:
    """Two runs of the implementation must agree within twice the error budget of a quantity."""

    value: Tensor
    expected: Tensor
    quantity: str
    how: Phrase | str | None
    rows: Rows = ""
    # For two runs that differ only in the strides of their arguments, if ``expected`` comes from contiguous arguments:
    # the tensors whose values differ from the case's. The keys are names of inputs, and ``cotangent.<output>`` for
    # cotangents. None for other runs.
    contiguous: dict[str, Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """The mean of a quantity over ``draws`` random dropout masks must equal the oracle's value without dropout.

    ``mean`` and ``std`` (standard deviation) are taken over the draws. Their shape is that of the
    quantity.
    """

    quantity: str
    mean: Tensor
    std: Tensor
    draws: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSum:
    """The sums of the rows of a quantity must be right within ``allowed`` or, if larger, the rounding model's error."""

    quantity: str
    # Largest absolute error of the sum of a row.
    off: float
    # Allowed error of the sum of a row if the softmax divides each weight by the sum of the row.
    allowed: float
    rows: Rows = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """A derivative must equal a central difference of a loss.

    The allowed error is a sum of two errors. The first is due to the rounding of the loss, and follows from the error
    budget. The second is due to the curvature of the loss, and follows from a second difference with twice the step.
    """

    # The derivative along the direction of the differences.
    derivative: float
    # Central difference with the step ``step``.
    slope: float
    # Central difference with twice the step; None: the loss is in float64, and its rounding does not count.
    wider: float | None
    step: float
    # The loss is a sum of elements of quantities, each times a factor. For each quantity, by name: the sum of the
    # absolute values of the factors.
    weights: dict[str, float]
    # The derivative, and of what it is; None: of the loss.
    quantity: str
    how: Phrase | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """A condition, which the check itself evaluated, must hold."""

    holds: bool
    # What is wrong if it does not hold; the text of a plug-in's check is shown as it is.
    violation: Phrase | str
    rows: Rows = ""
    # The number that the condition bounds; None if the condition bounds no number.
    measured: float | None = None
    # The largest number that meets the condition; None if the condition bounds no number.
    allowed: float | None = None
    # The policies under which the condition would hold, if there are any.
    deviation: PolicyDeviation | None = None


Observation = Match | Exact | Scale | Equal | Agree | Average | RowSum | Slope | Holds
# Fields of observations that are structs.
_STRUCTS = {"how": Phrase | str | None, "violation": Phrase | str, "deviation": PolicyDeviation | None}
_KINDS = {kind.__name__: kind for kind in (Match, Exact, Scale, Equal, Agree, Average, RowSum, Slope, Holds)}


def serialize(observations: list[Observation]) -> list[dict[str, Any]]:
    """Convert observations to dicts with tensors on the CPU, which ``tensor_file.write`` can store."""
    return [
        {"kind": type(observation).__name__}
        | {f.name: _move_to_cpu(getattr(observation, f.name)) for f in fields(observation)}
        for observation in observations
    ]


def deserialize(observations: list[dict[str, Any]]) -> list[Observation]:
    """Convert the result of ``serialize`` back to observations."""
    return [
        _KINDS[observation["kind"]](**{k: _restore(k, v) for k, v in observation.items() if k != "kind"})
        for observation in observations
    ]


def _restore(field: str, value: Any) -> Any:
    wanted: Any = _STRUCTS.get(field)
    return value if wanted is None else msgspec.convert(value, wanted)


def _move_to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    return {k: _move_to_cpu(v) for k, v in value.items()} if isinstance(value, dict) else value
