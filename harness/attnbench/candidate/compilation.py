"""A call as torch's compilers make it, to be checked like any other."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from attnbench.cases import Case
from attnbench.interface import Inputs

__all__ = ["Called", "compiled"]


class Called(nn.Module):
    """A prepared call as a module; it owns the module that the call uses."""

    def __init__(self, call: Callable[..., Any], owner: Any) -> None:
        super().__init__()
        self.owner = owner if isinstance(owner, nn.Module) else None
        self._call = call

    def forward(self, **arguments: Any) -> Any:
        """What the call returns."""
        return self._call(**arguments)


def compiled(call: Callable[..., Any], module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
    """The call, compiled as the case's mode says.

    Graph breaks are allowed: what is asked is that a user's ``torch.compile`` stays right, not that it is one graph.
    """
    # Another compilation of the same code in this process must not be taken for this one.
    torch.compiler.reset()
    if case.compiler == "export":
        # It takes modules alone.
        whole = call if isinstance(call, nn.Module) else Called(call, module)
        # Parameters may be frozen afterwards, not here: export keeps what it was given.
        return torch.export.export(whole, (), inputs.arguments()).module()
    return torch.compile(call, backend=str(case.compiler))
