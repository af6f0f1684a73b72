"""Facts about values that a check compared: how far they are off, and what they look like."""

import msgspec

__all__ = ["ValueFact", "WrongShape"]


class WrongShape(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A quantity has another shape than it must have."""

    quantity: str
    shape: tuple[int, ...]
    expected: tuple[int, ...]


# Facts of a check that ran. The union is closed: each struct is told apart by its tag.
ValueFact = WrongShape
