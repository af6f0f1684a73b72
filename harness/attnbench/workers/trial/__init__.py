"""Try the usual ways of constructing and calling a function or a module, and find one that gives the right result."""

from typing import Any

from attnbench.interface import Implementation
from attnbench.plugins.adapters import ModuleImplementation
from attnbench.processes.convention_requests import AsItIs, Proposal

__all__ = ["find_convention"]


def find_convention(thing: Any, implementation: Implementation) -> Proposal:
    """Return by which convention an object gives the right result on a small problem.

    ``implementation`` is what the object is without a declaration. An ``Implementation`` has declared how it is called.
    """
    # Imported here, so that a worker that tries nothing starts without them.
    from attnbench.workers.trial.functions import find_function_convention
    from attnbench.workers.trial.modules import find_module_convention

    if thing is implementation or (isinstance(thing, type) and issubclass(thing, Implementation)):
        return AsItIs()
    if isinstance(implementation, ModuleImplementation):
        return find_module_convention(thing, implementation)
    return find_function_convention(thing)
