"""Compilation of a candidate's call by torch's compilers, so that the compiled call is checked like any other."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from attnbench.cases import Case
from attnbench.interface import Inputs

__all__ = ["CallModule", "compile_call"]


class CallModule(nn.Module):
    """A prepared call in the form of a module, whose submodule is the module that the call uses."""

    def __init__(self, call: Callable[..., Any], owner: Any) -> None:
        super().__init__()
        self.owner = owner if isinstance(owner, nn.Module) else None
        self._call = call

    def forward(self, **arguments: Any) -> Any:
        """Return the result of the call."""
        return self._call(**arguments)


def compile_call(call: Callable[..., Any], module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
    """Return the call, compiled as the case's mode says.

    Graph breaks are allowed: the compiled call must return correct results, but need not be a single graph.
    """
    # Graphs that were compiled earlier in this process must not be reused.
    torch.compiler.reset()
    if case.compiler == "export":
        # torch.export accepts modules only.
        whole = call if isinstance(call, nn.Module) else CallModule(call, module)
        # The exported module keeps requires_grad of every parameter.
        return torch.export.export(whole, (), inputs.arguments()).module()
    return torch.compile(call, backend=str(case.compiler))
