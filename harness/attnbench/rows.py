"""Rows of outputs that are an implementation's own affair: taken out on both sides of every comparison."""

from collections.abc import Mapping

from torch import Tensor

__all__ = ["blanked"]


def blanked(quantities: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Quantities by name, with 0 in the given rows of each; what comes back through those rows is 0, too.

    Something of another shape than the rows are of is left as it is: what compares it will say so.
    """
    return {
        name: value.masked_fill(rows[name], 0.0) if name in rows and _fits(value, rows[name]) else value
        for name, value in quantities.items()
    }


def _fits(value: Tensor, rows: Tensor) -> bool:
    return value.dim() == rows.dim() and all(
        own in (1, size) for own, size in zip(rows.shape, value.shape, strict=True)
    )
