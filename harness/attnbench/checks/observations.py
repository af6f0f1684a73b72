"""Claims: what a check says about tensors that it observed. A closed set; ``verdict`` judges them.

A check runs beside the implementation and only observes; claims are judged in another process, which never loaded a
plug-in and knows the oracle.
"""

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

__all__ = ["Agree", "Average", "Equal", "Exact", "Holds", "Match", "Observation", "Scale", "restored", "stored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Quantities equal the oracle's within the error budget."""

    quantities: dict[str, Tensor]
    # The dropout mask that the implementation drew, where its weights reveal it.
    keep: Tensor | None = None
    # Quantities that may have any dtype (autocast leaves that of returned weights open).
    any_dtype: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Quantities are the oracle's, bit for bit: the case is one in which no rounding can occur."""

    quantities: dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A quantity shows the softmax scale, or the amplitude, that the oracle has."""

    quantity: str
    value: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """Two tensors are the same bits."""

    value: Tensor
    expected: Tensor
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Agree:
    """Two runs of the implementation agree within twice the budget of a quantity."""

    value: Tensor
    expected: Tensor
    quantity: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """The mean of random draws of a quantity is the oracle's.

    Shape: mean and std like the quantity.
    """

    quantity: str
    mean: Tensor
    std: Tensor
    draws: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """Something that needs no tensor to judge."""

    holds: bool
    what: str
    # Number that came out, where there is one.
    measured: float | None = None
    allowed: float | None = None


Observation = Match | Exact | Scale | Equal | Agree | Average | Holds
_KINDS = {kind.__name__: kind for kind in (Match, Exact, Scale, Equal, Agree, Average, Holds)}


def stored(observations: list[Observation]) -> list[dict[str, Any]]:
    """Plain containers of these claims, as ``torch.save`` takes them, on the CPU."""
    return [
        {"kind": type(observation).__name__}
        | {f.name: _on_cpu(getattr(observation, f.name)) for f in fields(observation)}
        for observation in observations
    ]


def restored(observations: list[dict[str, Any]]) -> list[Observation]:
    """Claims from what ``stored`` made."""
    return [
        _KINDS[observation["kind"]](**{k: v for k, v in observation.items() if k != "kind"})
        for observation in observations
    ]


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    return {k: _on_cpu(v) for k, v in value.items()} if isinstance(value, dict) else value
