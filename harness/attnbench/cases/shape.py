"""The shape of a call to time, in terms that operators share."""

from dataclasses import dataclass

__all__ = ["Shape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes and mask of a call to time; an operator makes cases of it.

    ``mask`` is ``none``, ``causal``, ``bool``, ``float``, ``padding``, or the name of a mask of the operator.
    """

    queries: int
    keys: int
    batch: int = 1
    heads: int = 4
    head_dim: int = 64
    # Number of key heads; None means as many as ``heads``.
    kv_heads: int | None = None
    mask: str = "none"
    # Share of the positions of the batch that are padding at the end of sequences, in addition to the mask; 0 means no
    # such padding.
    padding: float = 0.0
