"""Common restrictions of kernels; the pool has a covering array of the cases that each restriction leaves.

A restriction maps factors to the values that are left.
"""

from collections.abc import Sequence
from typing import Any

__all__ = ["RESTRICTIONS"]

Restriction = dict[str, tuple[Any, ...]]

NO_SOFTCAP: Restriction = {"softcap": (0.0,)}
EQUAL_HEADS: Restriction = {"heads": ((3, None), (1, None))}
EQUAL_WIDTHS: Restriction = {"widths": ((8, None), (16, None))}
WITHOUT_GRADIENTS: Restriction = {"mode": ("inference", "inference_mode")}
SIMPLE: Restriction = NO_SOFTCAP | EQUAL_HEADS | EQUAL_WIDTHS
PLAIN: Restriction = (
    NO_SOFTCAP | EQUAL_WIDTHS | {"window": (None,), "added": ("",), "ragged": (False,), "scale": (0.0,)}
)
RESTRICTIONS: Sequence[tuple[int, Restriction]] = (
    (2, NO_SOFTCAP),
    (2, NO_SOFTCAP | EQUAL_HEADS),
    (2, NO_SOFTCAP | EQUAL_WIDTHS),
    (2, SIMPLE),
    (2, WITHOUT_GRADIENTS),
    (2, WITHOUT_GRADIENTS | NO_SOFTCAP),
    (2, WITHOUT_GRADIENTS | SIMPLE),
    (2, WITHOUT_GRADIENTS | SIMPLE | {"dtype": ("float16", "bfloat16")}),
    (2, PLAIN),
    (2, PLAIN | EQUAL_HEADS),
    (2, PLAIN | EQUAL_HEADS | {"causal": ("causal_tl", "causal_br")}),
)
