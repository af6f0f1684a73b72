"""The requests to the process that runs a model, and their replies."""

import msgspec

from attnbench.processes.request import Fault, Request
from attnmodels.facts import Cell, Inspection

__all__ = ["CheckAttention", "CheckedAttention", "InspectModel"]


class InspectModel(Request[Inspection | Fault], frozen=True, kw_only=True):
    """Build a model, run its situations with exact attention, and check the model itself.

    ``small``: make the configuration small; None: only that of a class.
    """

    source: str
    small: bool | None = None


class CheckedAttention(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What was found of one attention function."""

    cells: tuple[Cell, ...]


class CheckAttention(Request[CheckedAttention | Fault], frozen=True, kw_only=True):
    """Check an attention function in every situation of a model."""

    source: str
    attention: str
    small: bool | None = None
