"""What is found of an attention function inside a model, as typed facts."""

import math
from typing import Literal

import msgspec

from attnbench.analysis.speed_verdict import SpeedVerdict
from attnbench.records.value_facts import Number, ValueFact

__all__ = [
    "END_TO_END", "MODEL", "ORDER", "OUTPUT", "SITUATIONS", "CallsDiffer", "Cause", "Cell", "CheckedSource",
    "Inspection", "LeftOut", "ModelFact", "NotDropped", "NotFiniteAtPadding", "NumbersDiffer", "PathsDiffer", "Raised",
    "Situation", "Status", "TimedModel", "Unrepeatable", "Visibility", "WholeError", "WrongResult",
]  # fmt: skip

Situation = Literal[
    "alone", "no-padding", "right-padding", "left-padding", "packed", "window", "grouped-heads", "soft-cap", "sinks",
    "training", "dropout", "cached-prefix", "chunks", "decoding", "padded-cache", "bfloat16", "float16", "end-to-end",
    "end-to-end-bfloat16", "end-to-end-float16",
]  # fmt: skip
# Situations in which the whole model runs on the path of a function, and the dtype of its weights.
END_TO_END: dict[Situation, str] = {
    "end-to-end": "float32", "end-to-end-bfloat16": "bfloat16", "end-to-end-float16": "float16",
}  # fmt: skip
ORDER: tuple[Situation, ...] = Situation.__args__  # type: ignore[attr-defined]
# Situations in which each call of attention is judged.
SITUATIONS: tuple[Situation, ...] = tuple(one for one in ORDER if one not in END_TO_END)
Status = Literal["held", "deviates", "refused", "failed"]
# The row of the model itself, whose masks and positions are checked with exact attention.
MODEL = "(the model)"
# Name of the output among the tensors of a whole model; the others are parameters, which stand for their gradients.
OUTPUT = "output"


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


class NotDropped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Two equal calls in training, which ask for dropout, with the same output: the function drops nothing."""

    dropout: float


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


class WholeError(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Error of the output of a whole model, or of the gradient of a parameter, against the model in float64."""

    # ``OUTPUT``, or the name of the parameter.
    tensor: str
    error: Number
    allowed: Number

    @property
    def share(self) -> float:
        """Error as a share of the allowed error; infinite where either is not a number."""
        error, allowed = float(self.error), float(self.allowed)
        if error <= allowed:
            return error / allowed if allowed else 0.0
        return error / allowed if allowed and math.isfinite(error) else math.inf


class CallsDiffer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A model that calls attention in another order, or with other shapes, than with exact attention."""

    expected: str
    came: str


class Raised(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An exception of the function, or of the model on its path."""

    kind: str
    message: str


ModelFact = (
    Visibility | WrongResult | Unrepeatable | NotDropped | NotFiniteAtPadding | NumbersDiffer | PathsDiffer | WholeError
    | CallsDiffer | Raised
)  # fmt: skip


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one attention function in one situation."""

    attention: str
    situation: Situation
    status: Status
    calls: int
    # Layers whose calls deviate, in the order of the calls, and the facts of the first such call. End to end: the error
    # of the output and the largest of the gradients, also where both are within their budgets.
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
    # Modules of attention that call no attention function in these situations.
    unseen_layers: tuple[str, ...] = ()
    # Of torch, and of the libraries of models.
    versions: dict[str, str] = {}


class TimedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a call of the whole model on the path of an attention function, without gradients."""

    attention: str
    # Error of the output of one timed call in each process, as a share of the allowed error: the largest. Above 1,
    # there is no time.
    share: float
    # Median over processes, in nanoseconds.
    median_ns: float | None = None
    # Ratio to the first path, from interleaved calls; None for the first path.
    verdict: SpeedVerdict | None = None
    # Ratio of the undisturbed calls, however few they are, where the verdict has none.
    rough_ratio: float | None = None


class CheckedSource(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found of a model and of attention functions in it."""

    source: str
    inspection: Inspection
    cells: tuple[Cell, ...]
    # Sequences and longest sequence of the timed batch.
    timed_batch: int = 0
    timed_length: int = 0
    times: tuple[TimedModel, ...] = ()
    # Why there are no times, although they were asked for.
    untimed: str = ""

    @property
    def label(self) -> str:
        """The class of the model, with the source where that does not name a class."""
        library, _, _ = self.source.partition(":")
        own = library in ("transformers", "diffusers")
        return self.inspection.model if own else f"{self.inspection.model} ({self.source})"

    @property
    def attentions(self) -> tuple[str, ...]:
        """Names of the attention functions, and before them the model itself."""
        return tuple(dict.fromkeys(cell.attention for cell in self.cells))

    def is_right(self, attention: str) -> bool:
        """Whether a function was checked and deviates nowhere."""
        statuses = {cell.status for cell in self.cells if cell.attention == attention}
        return "held" in statuses and not statuses & {"deviates", "failed"}

    def is_refused(self, attention: str) -> bool:
        """Whether a function is refused in every situation."""
        return {cell.status for cell in self.cells if cell.attention == attention} == {"refused"}

    def get_cell(self, attention: str, situation: Situation) -> Cell | None:
        """Return what was found of a function in a situation; None if nothing was looked for."""
        return next((one for one in self.cells if (one.attention, one.situation) == (attention, situation)), None)
