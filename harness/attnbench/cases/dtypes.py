"""Dtypes of cases and precisions of arithmetic, with the properties of their numbers on which checks depend."""

from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["DTYPES", "NARROW_DTYPES", "NUMBER_FORMATS", "Dtype", "NumberFormat", "Precision"]

Dtype = Literal["float32", "float64", "bfloat16", "float16"]
# Precisions from finest to coarsest. TF32 has as many significant bits as float16.
Precision = Literal["float64", "float32", "tf32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """Properties of the numbers of a dtype. Source: ``torch.finfo``, which a process without torch cannot read."""

    bytes: int
    # Bits of the significand, the implicit first bit included.
    significant_bits: int
    # Whether the largest number is near that of float32, 3.4e38, or above it.
    is_wide: bool


NUMBER_FORMATS: dict[Dtype, NumberFormat] = {
    "float32": NumberFormat(bytes=4, significant_bits=24, is_wide=True),
    "float64": NumberFormat(bytes=8, significant_bits=53, is_wide=True),
    "bfloat16": NumberFormat(bytes=2, significant_bits=8, is_wide=True),
    "float16": NumberFormat(bytes=2, significant_bits=11, is_wide=False),
}
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
# Dtypes narrower than float32.
NARROW_DTYPES = tuple(dtype for dtype in DTYPES if NUMBER_FORMATS[dtype].bytes < NUMBER_FORMATS["float32"].bytes)
