"""Copies of modules by pickle, without the implementations that modules may refer to."""

import io
import pickle
from typing import Any

from torch import nn

from attnbench.interface import Implementation

__all__ = ["pickle_and_unpickle"]


class _Pickler(pickle.Pickler):
    """Pickler that stores a number in place of each ``Implementation`` object.

    An implementation is code, not state of the module. ``_Unpickler`` puts the object back.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.implementations: list[Implementation] = []

    def persistent_id(self, thing: Any) -> Any:
        if not isinstance(thing, Implementation):
            return None
        self.implementations.append(thing)
        return len(self.implementations) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, implementations: list[Implementation]) -> None:
        super().__init__(file)
        self._implementations = implementations

    def persistent_load(self, number: Any) -> Any:
        return self._implementations[number]


def pickle_and_unpickle(module: nn.Module) -> nn.Module:
    """Return the copy of a module that pickling and unpickling make."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(module)
    file.seek(0)
    loaded: nn.Module = _Unpickler(file, pickler.implementations).load()
    return loaded
