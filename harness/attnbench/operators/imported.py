"""Attributes of an operator that are imported when they are used: an operator's description imports no torch."""

from pkgutil import resolve_name
from typing import Any

__all__ = ["imported"]


class _Imported:
    """The object at a place; a function is called without the operator."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __get__(self, instance: object, owner: type) -> Any:
        return resolve_name(self._place)


def imported(place: str) -> Any:
    """Return an attribute whose value is the module ``package.module``, or the object ``package.module:name``.

    The attribute stands for the method, or the property, of the same name in ``Operator``, which describes it.
    """
    return _Imported(place)
