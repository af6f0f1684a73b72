"""Checks of the arguments of an ``attention_core`` call."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench.argument_checks import demand_tensor, describe_argument
from attnbench.masks import demand_positions

__all__ = ["check_arguments"]

LENGTH_DTYPES = (torch.int32, torch.int64)


def check_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None,
    key_lengths: Tensor | None,
    causal: str | None,
    window: int | None,
    alibi_slopes: Sequence[float] | None,
    softcap: float | None,
    scale: float | None,
) -> None:
    """Refuse arguments that would be broadcast or misread, and would give a wrong output.

    Raises: ValueError or TypeError whose message has the argument's name, what it must be and what was given.
    """
    _check_tokens(query, key, value)
    if bias is not None:
        _check_bias(bias, query, keys=key.shape[2])
        if alibi_slopes is not None:
            raise ValueError("alibi_slopes must be None if bias is given, got both")
    if key_lengths is not None:
        _check_lengths(key_lengths, query)
    demand_positions(key.shape[2], causal=causal, window=window, key_lengths=key_lengths)
    if alibi_slopes is not None:
        _check_slopes(alibi_slopes, query.shape[1])
    if scale is not None:
        _demand_number("scale", scale)
    if softcap is not None:
        _check_softcap(softcap)


def _check_tokens(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tokens in (("query", query), ("key", key), ("value", value)):
        demand_tensor(name, tokens)
    if not query.dim() == key.dim() == value.dim() == 4:
        dims = f"{query.dim()}, {key.dim()} and {value.dim()}"
        raise ValueError(f"query, key and value must have 4 dimensions (batch, heads, length, width), got {dims}")
    (batch, heads, _, width), (_, shared, keys, _) = query.shape, key.shape
    if not width:
        raise ValueError(f"query must have a head width of at least 1, got shape {tuple(query.shape)}")
    _demand_shape("key", key, (batch, shared, keys, width))
    _demand_shape("value", value, (batch, shared, keys, value.shape[3]))
    if not shared or heads % shared:
        raise ValueError(
            f"query's number of heads must be a multiple of key's, got {heads} query heads and {shared} key heads"
        )
    if not query.dtype == key.dtype == value.dtype:
        dtypes = f"{_format_dtype(query.dtype)}, {_format_dtype(key.dtype)} and {_format_dtype(value.dtype)}"
        raise TypeError(f"query, key and value must have the same dtype, got {dtypes}")
    if not query.is_floating_point():
        raise TypeError(f"query, key and value must be floating point, got {_format_dtype(query.dtype)}")
    for name, tokens in (("key", key), ("value", value)):
        _demand_device(name, tokens, query)


def _check_bias(bias: Tensor, query: Tensor, *, keys: int) -> None:
    demand_tensor("bias", bias)
    batch, heads, queries, _ = query.shape
    _demand_shape("bias", bias, (queries, keys), (batch, heads, queries, keys))
    if bias.dtype != query.dtype:
        raise TypeError(f"bias must have query's dtype {_format_dtype(query.dtype)}, got {_format_dtype(bias.dtype)}")
    _demand_device("bias", bias, query)


def _check_lengths(key_lengths: Tensor, query: Tensor) -> None:
    demand_tensor("key_lengths", key_lengths)
    _demand_shape("key_lengths", key_lengths, (query.shape[0],))
    if key_lengths.dtype not in LENGTH_DTYPES:
        dtypes = " or ".join(map(_format_dtype, LENGTH_DTYPES))
        raise TypeError(f"key_lengths must have dtype {dtypes}, got {_format_dtype(key_lengths.dtype)}")
    _demand_device("key_lengths", key_lengths, query)


def _check_softcap(softcap: float) -> None:
    _demand_number("softcap", softcap)
    if softcap <= 0:
        raise ValueError(f"softcap must be above 0, or None, got {softcap}")


def _check_slopes(slopes: Sequence[float], heads: int) -> None:
    if not isinstance(slopes, list | tuple):
        given = describe_argument(slopes)
        raise TypeError(f"alibi_slopes must be a list or tuple of {heads} numbers, or None, got {given}")
    if len(slopes) != heads:
        raise ValueError(f"alibi_slopes must have one number for each of the {heads} query heads, got {len(slopes)}")
    for head, slope in enumerate(slopes):
        _demand_number(f"alibi_slopes[{head}]", slope)


def _demand_shape(name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> None:
    if tuple(tensor.shape) not in shapes:
        wanted = " or ".join(str(shape) for shape in shapes)
        raise ValueError(f"{name} must have shape {wanted}, got {tuple(tensor.shape)}")


def _demand_device(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.device != query.device:
        raise ValueError(f"{name} must be on query's device {query.device}, got {tensor.device}")


def _demand_number(name: str, given: Any) -> None:
    """Raise TypeError for a non-number, and ValueError for NaN or infinity.

    The code uses only comparisons, because compilers such as torch.compile can trace comparisons.
    """
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise TypeError(f"{name} must be a number, got {describe_argument(given)}")
    if not -math.inf < given < math.inf:
        raise ValueError(f"{name} must be finite, got {given}")


def _format_dtype(dtype: Any) -> str:
    """Return the name of a dtype without the prefix ``torch.``."""
    return str(dtype).removeprefix("torch.")
