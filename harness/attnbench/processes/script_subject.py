"""The implementation that a standalone program calls, and how the program builds a module from the implementation."""

from typing import Literal

import msgspec

from attnbench.interface import Policies

__all__ = ["SHOWN_CHECKS", "Form", "FormKind", "Subject"]

FormKind = Literal["implementation", "implementation class", "module class", "function"]
# Checks whose failure a standalone program shows: they only need the outputs and gradients of one plain call of the
# case, compared within the allowance.
SHOWN_CHECKS = frozenset(
    {
        "autocast_parity", "compiled_parity", "forward_parity", "input_gradients", "mask_gradients",
        "parameter_gradients", "weights_only_on_request", "weights_parity",
    }
)  # fmt: skip


class Form(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Kind of the object that a user names, and the keywords that the object accepts.

    Keywords are None if the object accepts every keyword, or if objects of its kind take no keywords of this sort.
    """

    kind: FormKind
    # Keywords that the constructor accepts; only for a module class.
    constructor: tuple[str, ...] | None = None
    # Keywords that a module class's forward method accepts, or that a function of (q, k, v) accepts. The field applies
    # only to these two kinds.
    call: tuple[str, ...] | None = None


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The implementation that a program calls."""

    name: str
    # Source code that imports the object named ``name`` and assigns it to the variable ``implementation``.
    load: str
    form: Form
    policies: Policies
    # Environment variables that must be set before torch is imported.
    environment: dict[str, str]
    # Checks that the user asked about, but that the program cannot show; the program's docstring names these checks.
    unshown: tuple[str, ...] = ()
