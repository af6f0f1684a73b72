"""The requests to the process that runs a model, and their replies."""

import msgspec

from attnbench.processes.request import Fault, Request
from attnbench.records.types import Timing
from attnbench.records.value_facts import Number
from attnmodels.facts import Cell, Inspection

__all__ = ["CheckAttention", "CheckedAttention", "InspectModel", "ModelSamples", "SampleModel"]


class InspectModel(Request[Inspection | Fault], frozen=True, kw_only=True):
    """Build a model, run its situations with exact attention, and check the model itself.

    ``small``: make the configuration small; None: only that of a class.
    """

    source: str
    small: bool | None = None


class CheckedAttention(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What was found of one attention function."""

    cells: tuple[Cell, ...]
    # Whether the function is called as an implementation, and not as one of transformers' attention functions.
    is_implementation: bool = False


class CheckAttention(Request[CheckedAttention | Fault], frozen=True, kw_only=True):
    """Check an attention function in every situation of a model."""

    source: str
    attention: str
    small: bool | None = None


class ModelSamples(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Samples of a model on the path of each attention function, and of a copy of the first, from one process.

    ``shares`` has the error of the output of one timed call, chosen at random, as a share of the allowed error.
    """

    samples: dict[str, Timing]
    shares: dict[str, Number]


class SampleModel(Request[ModelSamples | Fault], frozen=True, kw_only=True):
    """Time interleaved calls of a model on the path of each attention function; the first is the baseline."""

    source: str
    attentions: list[str]
    small: bool | None
    batch: int
    length: int
    # Planned time of all timed calls, in seconds, and the largest that the fewest samples may take.
    budget_s: float
    limit_s: float
    seed: int
    threads: int | None
