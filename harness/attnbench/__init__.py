"""Check, measure and track implementations of multi-head attention in PyTorch."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from attnbench.cases import Case, Problem
from attnbench.interface import Implementation, Inputs, Operator, Policies, Refusal

if TYPE_CHECKING:
    from attnbench.api import Report, conform

__all__ = [
    "Case",
    "Implementation",
    "Inputs",
    "Operator",
    "Policies",
    "Problem",
    "Refusal",
    "Report",
    "__version__",
    "conform",
]

__version__ = version("attnbench")


def __getattr__(name: str) -> Any:
    """Import ``Report`` and ``conform`` on first use: a module that only declares an implementation needs neither."""
    if name not in ("Report", "conform"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from attnbench import api

    return getattr(api, name)
