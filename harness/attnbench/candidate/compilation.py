"""Compilation of a candidate's call by torch's compilers; in a compiled case, the checks make the compiled call."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from attnbench.cases import Case
from attnbench.interface import Inputs

__all__ = ["CallModule", "compile_call"]


class CallModule(nn.Module):
    """Module whose forward makes a prepared call.

    The submodule ``owner`` is the module that the call uses, or None if the call uses no
    ``torch.nn.Module``.
    """

    def __init__(self, call: Callable[..., Any], owner: Any) -> None:
        super().__init__()
        self.owner = owner if isinstance(owner, nn.Module) else None
        # The partial hides the call, which may be ``owner`` itself: torch does not restore the parameters of a module
        # that is registered twice.
        self._call = partial(call)

    def forward(self, **arguments: Any) -> Any:
        """Return the result of the prepared call."""
        return self._call(**arguments)


def compile_call(call: Callable[..., Any], module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
    """Return the call, compiled or exported as the case's mode says.

    ``torch.compile`` may break graphs: the compiled call must return correct results, but need not be a single graph.
    """
    # Discard the graphs that were compiled earlier in this process, so that none is reused.
    torch.compiler.reset()
    if case.compiler == "export":
        # torch.export accepts a module, but not a function.
        whole = call if isinstance(call, nn.Module) else CallModule(call, module)
        # In the exported module, requires_grad of every parameter is the same as in ``whole``.
        return torch.export.export(whole, (), inputs.arguments()).module()
    return torch.compile(call, backend=str(case.compiler))
