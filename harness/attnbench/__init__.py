"""Check, measure and track implementations of multi-head attention in PyTorch."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from attnbench.cases import Case, Problem
from attnbench.interface import Implementation, Inputs, Operator, Policies, Refusal

if TYPE_CHECKING:
    from attnbench.api import Report, conform, results
    from attnbench.api.choosing import choose
    from attnbench.api.comparing import Comparison, compare
    from attnbench.api.profiling import ProfileResult, profile
    from attnbench.integrations.loading import load

# Public names that are imported on first use: a module that only declares an implementation needs none of them.
_LATE = {
    "Comparison": "attnbench.api.comparing",
    "ProfileResult": "attnbench.api.profiling",
    "Report": "attnbench.api",
    "choose": "attnbench.api.choosing",
    "compare": "attnbench.api.comparing",
    "conform": "attnbench.api",
    "load": "attnbench.integrations.loading",
    "profile": "attnbench.api.profiling",
    "results": "attnbench.api",
}

__all__ = [
    "Case",
    "Comparison",
    "Implementation",
    "Inputs",
    "Operator",
    "Policies",
    "Problem",
    "ProfileResult",
    "Refusal",
    "Report",
    "__version__",
    "choose",
    "compare",
    "conform",
    "load",
    "profile",
    "results",
]

__version__ = version("attnbench")


def __getattr__(name: str) -> Any:
    """Import a name of ``_LATE``."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LATE[name])
    return getattr(module, name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
