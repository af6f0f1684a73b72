"""What a call of ``attention_core`` is given, looked at before anything is computed with it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["check_arguments"]

CORNERS = ("top_left", "bottom_right")


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
) -> None:
    """Refuse what would broadcast, or be taken for something else, into a wrong answer.

    Raises: ValueError, TypeError that name the argument, what was needed and what came.
    """
    _check_tokens(query, key, value)
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    if bias is not None:
        _demand_shape("bias", bias, (queries, keys), (batch, heads, queries, keys))
        if not bias.is_floating_point():
            raise TypeError(f"bias must be floating point, as it is added to logits, got {_name(bias.dtype)}")
    if key_lengths is not None:
        _check_lengths(key_lengths, batch, keys)
    if causal is not None and causal not in CORNERS:
        raise ValueError(f"causal must be {' or '.join(map(repr, CORNERS))}, or None, got {causal!r}")
    if window is not None and window < 0:
        raise ValueError(f"window must be a distance of at least 0, or None, got {window}")
    if alibi_slopes is not None and len(alibi_slopes) != heads:
        raise ValueError(f"alibi_slopes must be one for each of {heads} heads of query, got {len(alibi_slopes)}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be above 0, or None, got {softcap:g}")


def _check_tokens(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not query.dim() == key.dim() == value.dim() == 4:
        dims = f"{query.dim()}, {key.dim()} and {value.dim()}"
        raise ValueError(f"query, key and value must have 4 dimensions (batch, heads, length, width), got {dims}")
    (batch, heads, _, width), (_, shared, keys, _) = query.shape, key.shape
    _demand_shape("key", key, (batch, shared, keys, width))
    _demand_shape("value", value, (batch, shared, keys, value.shape[3]))
    if not shared or heads % shared:
        raise ValueError(f"heads of query must be a multiple of those of key, got {heads} and {shared}")
    if not query.dtype == key.dtype == value.dtype:
        dtypes = f"{_name(query.dtype)}, {_name(key.dtype)} and {_name(value.dtype)}"
        raise TypeError(f"query, key and value must be of one dtype, got {dtypes}")


def _check_lengths(key_lengths: Tensor, batch: int, keys: int) -> None:
    _demand_shape("key_lengths", key_lengths, (batch,))
    if key_lengths.is_floating_point() or key_lengths.is_complex() or key_lengths.dtype == torch.bool:
        raise TypeError(f"key_lengths must be whole numbers, got {_name(key_lengths.dtype)}")
    # On a device, looking at them would wait for it in every call; a compiler cannot look at all.
    if key_lengths.device.type != "cpu" or torch.compiler.is_compiling() or not batch:
        return
    fewest, most = (int(end) for end in key_lengths.aminmax())
    if fewest < 0 or most > keys:
        raise ValueError(f"key_lengths must be 0 to keys = {keys}, got {fewest} to {most}")


def _demand_shape(name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> None:
    if tuple(tensor.shape) not in shapes:
        wanted = " or ".join(str(shape) for shape in shapes)
        raise ValueError(f"{name} must have shape {wanted}, got {tuple(tensor.shape)}")


def _name(dtype: Any) -> str:
    """A dtype without its package."""
    return str(dtype).removeprefix("torch.")
