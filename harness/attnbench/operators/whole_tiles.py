"""Whole tiles: lengths and other values of a case for which kernels have branches of their own.

Such a branch takes multiples of 64 keys with heads of 64 or 128 features, and as many queries or the single query of a
decoding step. It can be wrong under one mask, or in one dtype, and right everywhere else.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["TILED", "VALUES"]

# Pairs of the numbers of queries and keys. Larger ones would take much longer.
TILED = ((128, 128), (64, 192), (1, 256))
VALUES: Mapping[str, tuple[Any, ...]] = {
    "dtype": ("float32", "bfloat16", "float16"),
    "mode": ("inference", "train"),
    "regime": ("plain", "peaked"),
}
