"""Facts about values that a check compared: how far they are off, where, and what they look like."""

import math
from typing import Literal

import msgspec

__all__ = [
    "AN_OUTPUT",
    "Acts",
    "BitsDiffer",
    "Compared",
    "ConditionViolated",
    "Coordinate",
    "DeclaredNanMissing",
    "Fault",
    "Limit",
    "LooksLike",
    "MeanAmplitudeOff",
    "MeanOff",
    "NearLimit",
    "NotDiagnosed",
    "NotEvaluated",
    "NotFinite",
    "NothingDropped",
    "Number",
    "Phrase",
    "PolicyDeviation",
    "ProbeName",
    "RowSumOff",
    "Rows",
    "ScaleOff",
    "SeenPolicy",
    "SharedPositions",
    "SlopeOff",
    "StridesMisread",
    "TimedCallChecked",
    "UnexpectedQuantity",
    "ValueFact",
    "ValuesOff",
    "WrongDtype",
    "WrongShape",
    "phrase",
    "store_number",
]

# A number, or the name of a number that JSON does not have: nan, inf or -inf.
Number = float | Literal["nan", "inf", "-inf"]
# Stands in a phrase for a call that returned an output, where other calls are named by the type of their exception.
AN_OUTPUT = ""
# The rows that a comparison is confined to, as policies decide what fully masked rows contain: all rows that are not
# fully masked (or all rows), fully masked rows, those and what they reach, or fully masked rows and others.
Rows = Literal["", "masked", "masked_or_beside", "masked_or_other"]


def store_number(number: float) -> Number:
    """Return a number as facts store it; ``float`` gives the number back."""
    if math.isfinite(number):
        return float(number)
    return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"


class Phrase(msgspec.Struct, frozen=True, kw_only=True):
    """What a check says of its own: a key of a template of ``words``, and what the template is filled with.

    A key without a template is the text of a plug-in's check or operator.
    """

    key: str
    values: dict[str, int | float | str] = {}

    def __hash__(self) -> int:
        return hash((self.key, *sorted(self.values.items())))


def phrase(key: str, /, **values: float | str) -> Phrase:
    """Return a phrase with these values."""
    return Phrase(key=key, values=values)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared: a quantity of the plain call of the case, or of the calls that ``how`` describes."""

    quantity: str
    how: Phrase | None = None
    rows: Rows = ""


class Coordinate(msgspec.Struct, frozen=True, kw_only=True):
    """The position of an element along an axis; an axis without a name is given by its number."""

    dimension: int
    axis: str
    position: int | str
    # Whether the axis groups the positions of another axis of the same dimension, as heads group features.
    groups: bool = False


class SharedPositions(msgspec.Struct, frozen=True, kw_only=True):
    """The positions along an axis that all wrong elements share: one, a few, or a range from a first to a last."""

    axis: str
    positions: tuple[int | str, ...]
    # Whether ``positions`` has the ends of a range, and whether the range ends with the axis.
    is_range: bool = False
    to_the_end: bool = False


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """An allowed error, and what it is computed from."""

    allowed: float
    # The error budget of the case, twice this budget for two runs, or the rounding of a join of partial means.
    origin: Literal["budget", "two_runs", "join"]
    # Of a budget: its factor, and the rounding errors of the model and of the reference (``oracle.error_budget``).
    factor: float = 0.0
    model: float = 0.0
    yardstick: float = 0.0


class WrongShape(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A quantity has another shape than it must have."""

    compared: Compared
    shape: tuple[int, ...]
    expected: tuple[int, ...]


class WrongDtype(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A quantity has another dtype than it must have."""

    compared: Compared
    dtype: str
    expected: str


class UnexpectedQuantity(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The call returned a quantity that the case does not have."""

    quantity: str


class ValuesOff(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Values of a quantity are further from what they must be than the allowed error."""

    compared: Compared
    # Number of elements that are off, and of all elements.
    count: int
    total: int
    # The worst element: its error, its place, its value and the expected value. The error is infinite if two large
    # numbers of opposite sign are further apart than float64 can say.
    worst: Number
    place: tuple[Coordinate, ...]
    value: Number
    expected: Number
    shared: tuple[SharedPositions, ...]
    limit: Limit


class NotFinite(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Values are NaN or infinite where they must not be, or the other way round; the first place is given."""

    compared: Compared
    count: int
    total: int
    place: tuple[Coordinate, ...]
    value: Number
    expected: Number
    shared: tuple[SharedPositions, ...]


class BitsDiffer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Values that must be equal bit for bit are not; the place of the largest difference is given."""

    compared: Compared
    count: int
    total: int
    place: tuple[Coordinate, ...]
    value: Number
    expected: Number
    shared: tuple[SharedPositions, ...]


# What is fitted over all elements of a quantity: the factor of the logits, or the common factor of the elements.
ProbeName = Literal["softmax_scale", "amplitude"]


class ScaleOff(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The softmax scale or the amplitude, fitted over all elements of a quantity, has a relative error."""

    quantity: str
    probe: ProbeName
    off: Number
    allowed: float
    # The fault models whose scale the softmax scale agrees with.
    fitting: tuple[Phrase, ...] = ()


class RowSumOff(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The sum of a row is off."""

    compared: Compared
    off: Number
    allowed: float


class SlopeOff(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A derivative differs from a central difference."""

    compared: Compared
    off: Number
    slope: Number
    allowed: Number
    # Whether the rounding of the loss decides the allowed error.
    rounded: bool


class MeanOff(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An element of the mean over draws of dropout is off.

    Unit of ``off`` and ``allowed``: standard errors.
    """

    quantity: str
    draws: int
    off: Number
    allowed: float
    place: tuple[Coordinate, ...]


class MeanAmplitudeOff(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All elements of the mean over draws of dropout are off by a common factor.

    ``share`` is the error as a share of the part that dropout changes. Unit of ``off`` and ``allowed``: standard
    errors.
    """

    quantity: str
    draws: int
    share: Number
    off: Number
    allowed: float


class NothingDropped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All draws of dropout gave the same values."""

    quantity: str
    draws: int


class DeclaredNanMissing(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The policies declare NaN gradients of fully masked rows, but no gradient is NaN."""


class ConditionViolated(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A condition that the check itself evaluated does not hold."""

    violation: Phrase
    rows: Rows = ""


# Where a fault acts: in the whole pass; in the backward pass alone, as the outputs are right; or in the backward pass
# at least, as the fault changes no output of the case.
Acts = Literal["pass", "backward_alone", "backward_at_least"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault model that reproduces what an implementation returned, and where it acts."""

    model: Phrase
    acts: Acts = "pass"
    # Whether the mistake is one of a mask, so that hidden tokens may have an effect.
    of_mask: bool = False


class LooksLike(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The values look like those of one fault model, or of several that give the same values."""

    faults: tuple[Fault, ...]


class StridesMisread(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The same call with contiguous tensors is right, so strides or offsets are misread."""


class NotDiagnosed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No diagnosis was tried, because the case has more query-key pairs than ``limit``."""

    limit: int


class SeenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy (``interface.Policies``), by name: the value that would describe what was seen, and the declared one."""

    name: str
    seen: str | bool
    declared: str | bool


class PolicyDeviation(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The finding would have passed under other policies than the declared ones."""

    policies: tuple[SeenPolicy, ...]


class TimedCallChecked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The check was made of one of ``calls`` timed calls, chosen at random, and of a call after them."""

    calls: int


class NotEvaluated(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a check observed cannot be evaluated: the type and the message of the exception."""

    raised: str
    message: str


class NearLimit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A check passed, but used this share of the allowed error."""

    share: float


# Facts of a check that ran. The union is closed: each struct is told apart by its tag.
ValueFact = (
    WrongShape
    | WrongDtype
    | UnexpectedQuantity
    | ValuesOff
    | NotFinite
    | BitsDiffer
    | ScaleOff
    | RowSumOff
    | SlopeOff
    | MeanOff
    | MeanAmplitudeOff
    | NothingDropped
    | DeclaredNanMissing
    | ConditionViolated
    | LooksLike
    | StridesMisread
    | NotDiagnosed
    | PolicyDeviation
    | TimedCallChecked
    | NotEvaluated
    | NearLimit
)
