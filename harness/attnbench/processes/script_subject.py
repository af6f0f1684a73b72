"""The implementation that a standalone program calls, and how the program builds a module from the implementation."""

from typing import Literal

import msgspec

from attnbench.interface import Policies

__all__ = ["Form", "FormKind", "Subject"]

FormKind = Literal["implementation", "implementation class", "module class", "function"]


class Form(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Kind of the object that a user names, and the keywords that the object accepts; None: every keyword."""

    kind: FormKind
    # Keywords of the constructor of a module class.
    constructor: tuple[str, ...] | None = None
    # Keywords of the forward of a module class, or of a function of (q, k, v).
    call: tuple[str, ...] | None = None


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The implementation that a program calls."""

    name: str
    # Source code that binds ``implementation`` to the object of this name.
    load: str
    form: Form
    policies: Policies
    # Environment variables that must be set before torch is imported.
    environment: dict[str, str]
