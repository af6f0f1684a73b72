"""Functions that the softmax of several variants uses: conversion to a wider dtype, and finite maxima of rows."""

import math

import torch
from torch import Tensor

__all__ = ["make_finite", "widen"]


def widen(tensor: Tensor) -> Tensor:
    """Convert a tensor to float32; a float64 tensor stays float64."""
    return tensor.double() if tensor.dtype == torch.float64 else tensor.float()


def make_finite(rows: Tensor) -> Tensor:
    """Return maxima or logsumexps of rows, with 0 in place of −∞, the value of a row without a visible key."""
    return rows.masked_fill(rows == -math.inf, 0.0)
