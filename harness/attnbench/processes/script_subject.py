"""The implementation that a standalone program calls, and how the program builds a module from the implementation."""

from typing import Literal

import msgspec

from attnbench.interface import Policies

__all__ = ["Form", "FormKind", "Subject"]

FormKind = Literal["implementation", "implementation class", "module class", "function"]


class Form(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Kind of the object that a user names, and the keywords that the object accepts.

    Keywords are None if the object accepts every keyword, or if objects of its kind take no keywords of this sort.
    """

    kind: FormKind
    # Keywords that the constructor accepts; only for a module class.
    constructor: tuple[str, ...] | None = None
    # Keywords that the call accepts: of a module class, its forward method; of a function of (q, k, v), the function
    # itself. The field applies only to these two kinds.
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
