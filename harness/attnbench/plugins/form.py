"""The form of an object that a user names: how a program without the harness builds a module from it."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Form", "FormKind"]

FormKind = Literal["implementation", "implementation class", "module class", "function"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Kind of an object, and the keywords that the harness passes to it; None: every keyword."""

    kind: FormKind
    # Keywords of the constructor of a module class.
    constructor: tuple[str, ...] | None = None
    # Keywords of the forward of a module class, or of a function of (q, k, v).
    call: tuple[str, ...] | None = None
