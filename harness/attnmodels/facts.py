"""What is found of an attention function inside a model, as typed facts."""

from typing import Literal

import msgspec

from attnbench.records.value_facts import Number, ValueFact

__all__ = [
    "MODEL", "SITUATIONS", "CallsDiffer", "Cause", "Cell", "Inspection", "LeftOut", "ModelFact", "NotFiniteAtPadding",
    "NumbersDiffer", "PathsDiffer", "Raised", "Situation", "Status", "Unrepeatable", "Visibility", "WrongResult",
]  # fmt: skip

Situation = Literal[
    "alone", "no-padding", "right-padding", "left-padding", "packed", "window", "grouped-heads", "soft-cap", "sinks",
    "training", "cached-prefix", "chunks", "decoding", "padded-cache", "bfloat16", "float16",
]  # fmt: skip
SITUATIONS: tuple[Situation, ...] = Situation.__args__  # type: ignore[attr-defined]
Status = Literal["held", "deviates", "refused", "failed"]
# The row of the model itself, whose masks and positions are checked with exact attention.
MODEL = "(the model)"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """The argument whose change alone gives what was observed.

    Names of arguments are those of transformers. ``by`` is the number of positions of a shift.
    """

    argument: Literal[
        "attention_mask", "is_causal", "sliding_window", "position_ids", "past_key_values", "scaling", "softcap",
        "s_aux", "position_bias", "num_key_value_groups",
    ]  # fmt: skip
    change: Literal["ignored", "inverted", "shifted", "reordered"] = "ignored"
    by: int = 0


class Visibility(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Keys that queries see and should not, or do not see and should, in one call."""

    seen: int
    hidden: int
    pairs: int
    cause: Cause | None = None
    # Whether a mask reached the function.
    masked: bool = True


class WrongResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An output, or gradients, outside the error budget on the numbers of the call."""

    facts: tuple[ValueFact, ...]
    cause: Cause | None = None


class Unrepeatable(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Two equal calls without dropout whose outputs differ by more than rounding: the function drops weights."""

    apart: Number


class NotFiniteAtPadding(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Padding whose output is not finite: in the next layer, 0 times its values is NaN in the tokens."""

    queries: int


class NumbersDiffer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Queries, keys or values that reach a function and are not those that reach exact attention in the same model."""

    tensor: str
    apart: Number
    allowed: Number


class PathsDiffer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Tokens whose numbers, with exact attention, depend on the situation: they differ from the sequence alone."""

    tensor: str
    apart: Number
    allowed: Number


class CallsDiffer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A model that calls attention in another order, or with other shapes, than with exact attention."""

    expected: str
    came: str


class Raised(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An exception of the function, or of the model on its path."""

    kind: str
    message: str


ModelFact = (
    Visibility | WrongResult | Unrepeatable | NotFiniteAtPadding | NumbersDiffer | PathsDiffer | CallsDiffer | Raised
)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one attention function in one situation."""

    attention: str
    situation: Situation
    status: Status
    calls: int
    # Layers whose calls deviate, in the order of the calls, and the facts of the first such call.
    layers: tuple[str, ...] = ()
    facts: tuple[ModelFact, ...] = ()


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A situation that a model does not have, or in which it cannot be run."""

    situation: Situation
    reason: str


class Inspection(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A model, its situations, and what was found of the model itself."""

    model: str
    parameters: int
    layers: tuple[str, ...]
    # Sizes and features that were changed to make the model small.
    changed: dict[str, str]
    situations: tuple[Situation, ...]
    left_out: tuple[LeftOut, ...]
    # Relative difference that casts to float32 inside the model make, where they are not neutralised.
    cast_floor: float
    # Layers whose masks are neither full, causal nor a window: their masks are compared with exact attention's alone.
    unknown_patterns: tuple[str, ...]
    cells: tuple[Cell, ...]
