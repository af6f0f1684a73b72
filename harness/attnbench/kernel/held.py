"""What a module holds, as an attribute that is found at once.

``nn.Module`` keeps parameters and submodules in tables, and finds them in ``__getattr__``, which Python asks after
everything else: 5 µs each in a call whose code has left the caches, where a descriptor of the class takes 1 to 2 µs.

Source: https://docs.python.org/3/howto/descriptor.html
"""

from typing import Generic, Literal, TypeVar, cast

from torch import nn

__all__ = ["Held"]

T = TypeVar("T")


class Held(Generic[T]):
    """A parameter, or a submodule, under the name that the class gives it.

    Nothing else changes: what is set on the instance goes before, as by weight_norm, and what is in no table, or in
    another one, is for ``nn.Module`` to find or to miss.
    """

    def __init__(self, table: Literal["_parameters", "_modules"] = "_parameters") -> None:
        self._table = table
        self._name = ""

    def __set_name__(self, owner: type[nn.Module], name: str) -> None:
        self._name = name

    def __get__(self, module: nn.Module | None, owner: type[nn.Module] | None = None) -> T:
        if module is None:
            raise AttributeError(self._name)  # as of any parameter, the class knows nothing
        try:
            return cast("T", module.__dict__[self._table][self._name])
        except KeyError:
            raise AttributeError(self._name) from None
