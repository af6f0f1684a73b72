"""From a check's name to its function."""

import importlib
from functools import cache

from attnbench.checks.catalogue import checks
from attnbench.checks.requirement import CheckFunction

__all__ = ["check_function"]


@cache
def check_function(name: str) -> CheckFunction:
    """Function of a check, from its chapter's module."""
    module = importlib.import_module(f"attnbench.checks.{checks()[name].chapter}")
    function: CheckFunction = getattr(module, name)
    return function
