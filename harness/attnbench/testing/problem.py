"""The problem that the arguments of a call describe: a case of ``attention_core`` with the call's own tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import DTYPES
from attnbench.interface import Inputs
from attnbench.operators.attention_core.positions import list_indices
from attnbench.operators.attention_core.problem import AttentionCoreProblem
from attnbench.testing.layouts import LAYOUTS, Packing, read_packing, split_heads

__all__ = ["ARGUMENTS", "Call", "Given", "read_call"]

# Largest number of query-key pairs of all sequences and heads. At the 96 bytes for each pair with gradients that the
# oracle worker predicts (``BYTES_PER_PAIR``), the oracle needs 6 GiB for them.
MOST_PAIRS = 2**26
# Names of the tensors that may have gradients, as callers name them, and as the operator does.
ARGUMENTS = {"q": "query", "k": "key", "v": "value", "mask": "bias", "sinks": "sinks"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments of a call of attention, as the functions of ``attnbench.testing`` take them."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    is_causal: bool | str = False
    scale: float | None = None
    score_mod: Callable[..., Tensor] | None = None
    mask_mod: Callable[..., Tensor] | None = None
    enable_gqa: bool = False
    cu_seqlens: Any = None
    sinks: Tensor | None = None
    layout: str = "bhsd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A call as the oracle takes it."""

    problem: AttentionCoreProblem
    inputs: Inputs
    layout: str
    packing: Packing | None

    def read_output(self, name: str, tensor: object, like: str) -> Tensor:
        """Return an output, gradient or cotangent on the CPU in the oracle's layout.

        ``like`` is the tensor of the operator in whose layout it is: ``output`` has the layout of ``query``. A shape
        that differs from the expected one is left for the comparison to report.
        """
        read = _read_tensor(name, tensor)
        if like == "bias":
            return _add_dimensions(read)
        if like == "sinks":
            return read
        tokens = 3 if self.layout == "thd" else 4
        if read.dim() != tokens:
            raise ValueError(
                f"{name} must have {tokens} dimensions in layout {self.layout!r}, got shape {tuple(read.shape)}"
            )
        if self.packing is None:
            return split_heads(read, self.layout)
        lengths = self.packing.keys if like in ("key", "value") else self.packing.queries
        if len(read) != sum(lengths):
            raise ValueError(f"{name} must have {sum(lengths)} packed tokens, got shape {tuple(read.shape)}")
        return split_heads(read, self.layout, lengths)


def read_call(call: Call) -> Given:
    """Read the arguments of a call.

    Raises: ValueError or TypeError, which name the argument, what it must be, what came, and the remedy.
    """
    if call.layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}; got {call.layout!r}")
    tokens = _widen({name: _read_finite(name, getattr(call, name)) for name in "qkv"}, call)
    dims = 3 if call.layout == "thd" else 4
    for name, tensor in tokens.items():
        if tensor.dim() != dims:
            raise ValueError(
                f"{name} must have {dims} dimensions in layout {call.layout!r}, got shape {tuple(tensor.shape)}; "
                f"other layouts: {', '.join(one for one in LAYOUTS if one != call.layout)}"
            )
    packing = _read_packing(call, tokens)
    lengths = {"q": packing.queries, "k": packing.keys, "v": packing.keys} if packing else dict.fromkeys("qkv", ())
    q, k, v = (split_heads(tensor, call.layout, lengths[name]) for name, tensor in tokens.items())
    _check_shapes(call, q, k, v)
    sizes = (len(q), q.shape[1], q.shape[2], k.shape[2])
    causal = _read_causal(call.is_causal, packing, *sizes[2:])
    mask = _read_mask(call.mask, sizes)
    visible = None if packing is None else packing.find_visible()
    if causal == "bottom_right" and packing is not None:
        visible, causal = _combine(visible, _find_causal(packing)), None
    if call.mask_mod is not None:
        visible = _combine(visible, _read_mask_mod(call.mask_mod, sizes))
    if call.mask is not None and call.mask.dtype == torch.bool:
        visible, mask = _combine(visible, mask), None
    problem = _make_problem(call, q, k, v, mask, causal)
    masks = {"bias": mask, "visible": visible}
    tensors = {"query": q, "key": k, "value": v} | {name: one for name, one in masks.items() if one is not None}
    if call.sinks is not None:
        sinks = _read_finite("sinks", call.sinks)
        if sinks.shape != (sizes[1],):
            raise ValueError(f"sinks must have one number for each of {sizes[1]} heads, got shape {tuple(sinks.shape)}")
        tensors["sinks"] = sinks
    options = {
        "causal": problem.causal, "window": None, "alibi_slopes": None, "softcap": None,
        "scale": problem.scale or None, "score_mod": _wrap_score_mod(call.score_mod),
    }  # fmt: skip
    return Given(
        problem=problem, inputs=Inputs(parameters={}, tensors=tensors, options=options), layout=call.layout,
        packing=packing,
    )  # fmt: skip


def _read_tensor(name: str, value: object) -> Tensor:
    """Return a tensor on the CPU; float8 becomes float32, which holds it exactly."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    read = value.detach().cpu()
    if read.is_floating_point() and read.element_size() == 1:
        return read.float()
    if str(read.dtype).removeprefix("torch.") not in (*DTYPES, "bool"):
        raise TypeError(f"{name} must be in {', '.join(DTYPES)} or float8, got {read.dtype}")
    return read


def _read_finite(name: str, value: object) -> Tensor:
    read = _read_tensor(name, value)
    if read.dtype == torch.bool or not bool(read.isfinite().all()):
        raise ValueError(
            f"{name} must be finite numbers, got {'booleans' if read.dtype == torch.bool else 'NaN or infinity'}"
        )
    return read


def _widen(tokens: Mapping[str, Tensor], call: Call) -> dict[str, Tensor]:
    """Return queries, keys and values in one dtype: that of those which are not in float8."""
    dtypes = {one.dtype for name, one in tokens.items() if getattr(call, name).element_size() > 1}
    if len(dtypes) > 1:
        came = ", ".join(f"{name} in {one.dtype}" for name, one in tokens.items())
        raise TypeError(f"q, k and v must have one dtype, except those in float8; got {came}")
    dtype = next(iter(dtypes), torch.float32)
    return {name: one.to(dtype) for name, one in tokens.items()}


def _read_packing(call: Call, tokens: Mapping[str, Tensor]) -> Packing | None:
    if (call.layout == "thd") != (call.cu_seqlens is not None):
        raise ValueError(
            "layout 'thd' needs cu_seqlens, the cumulative lengths of the sequences" if call.layout == "thd"
            else f"cu_seqlens needs layout='thd', got layout={call.layout!r}"
        )  # fmt: skip
    return None if call.cu_seqlens is None else read_packing(call.cu_seqlens, (len(tokens["q"]), len(tokens["k"])))


def _check_shapes(call: Call, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Check sizes of tensors with heads before lengths."""
    shown = {name: tuple(getattr(call, name).shape) for name in "qkv"}
    if not (len(q) == len(k) == len(v)):
        raise ValueError(f"q, k and v must have the same batch, got shapes {shown} in layout {call.layout!r}")
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(f"k and v must have the same heads and length, got shapes {shown} in layout {call.layout!r}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have the same width, got {q.shape[-1]} and {k.shape[-1]}, shapes {shown}")
    if q.shape[1] != k.shape[1] and not (call.enable_gqa and k.shape[1] and q.shape[1] % k.shape[1] == 0):
        remedy = "enable_gqa=True" if q.shape[1] % max(k.shape[1], 1) == 0 else "another layout"
        raise ValueError(
            f"q and k must have as many heads, got {q.shape[1]} and {k.shape[1]} in layout {call.layout!r}; "
            f"try {remedy}"
        )
    pairs = len(q) * q.shape[1] * q.shape[2] * k.shape[2]
    if pairs > MOST_PAIRS:
        raise ValueError(
            f"q and k must have at most {MOST_PAIRS} query-key pairs in all heads, because the expected values are "
            f"computed in float64; got {pairs}: check fewer sequences or heads"
        )


def _read_causal(is_causal: object, packing: Packing | None, queries: int, keys: int) -> str | None:
    """Return the corner of a causal mask; True is the top left, as in torch's scaled_dot_product_attention."""
    if is_causal is False or is_causal is None:
        return None
    equal = packing.queries == packing.keys if packing else queries == keys
    if is_causal is True and packing and not equal:
        raise ValueError(
            "is_causal must be 'top_left' or 'bottom_right' where packed queries and keys differ, got True"
        )
    if is_causal is True or (is_causal in ("top_left", "bottom_right") and equal):
        return "top_left"
    if is_causal not in ("top_left", "bottom_right"):
        raise ValueError(f"is_causal must be True, False, 'top_left' or 'bottom_right', got {is_causal!r}")
    return str(is_causal)


def _find_causal(packing: Packing) -> Tensor:
    """Return causal masks whose diagonals end at the last query and key of each sequence."""
    queries, keys = torch.tensor(packing.queries), torch.tensor(packing.keys)
    own = torch.arange(int(queries.max()))[:, None] + (keys - queries)[:, None, None]
    return (torch.arange(int(keys.max())) <= own)[:, None]


def _read_mask(mask: Tensor | None, sizes: tuple[int, int, int, int]) -> Tensor | None:
    """Return a mask with four dimensions, broadcastable to (batch, heads, queries, keys)."""
    if mask is None:
        return None
    read = _read_tensor("mask", mask)
    if read.dtype != torch.bool and bool((read.isnan() | read.isposinf()).any()):
        raise ValueError("mask must be booleans (true: visible) or numbers without NaN and +infinity")
    wide = _add_dimensions(read)
    if wide.dim() != 4 or any(extent not in (1, size) for extent, size in zip(wide.shape, sizes, strict=True)):
        raise ValueError(
            f"mask must be broadcastable to (batch, heads, queries, keys) = {sizes}, got shape {tuple(read.shape)}"
        )
    return wide


def _add_dimensions(mask: Tensor) -> Tensor:
    """Return a mask with leading dimensions of size 1 where it has fewer than four."""
    return mask.reshape((1,) * (4 - mask.dim()) + mask.shape)


def _read_mask_mod(mask_mod: Callable[..., Tensor], sizes: tuple[int, int, int, int]) -> Tensor:
    found = mask_mod(*list_indices(sizes))
    if not isinstance(found, Tensor) or found.dtype != torch.bool:
        raise TypeError(f"mask_mod must return booleans, got {getattr(found, 'dtype', type(found).__name__)}")
    return found


def _combine(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one & other


def _wrap_score_mod(score_mod: Callable[..., Tensor] | None) -> Callable[..., Tensor] | None:
    if score_mod is None:
        return None

    def change(score: Tensor, *indices: Tensor) -> Tensor:
        found = score_mod(score, *indices)
        if not isinstance(found, Tensor) or found.shape != score.shape:
            raise ValueError(
                f"score_mod must return a tensor of the shape of its first argument, {tuple(score.shape)}; "
                f"got {tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__}"
            )
        return found.to(score.dtype)

    return change


def _make_problem(
    call: Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: str | None
) -> AttentionCoreProblem:
    parts = [{"top_left": "causal_tl", "bottom_right": "causal_br"}[causal]] if causal else []
    parts += [] if bias is None else ["bias4d"]
    if call.scale is not None and not call.scale > 0:
        raise ValueError(f"scale must be a positive number, got {call.scale!r}")
    return AttentionCoreProblem(
        sequences=len(q), num_heads=q.shape[1], kv_heads=k.shape[1], queries=q.shape[2], keys=k.shape[2],
        head_dim=q.shape[3], head_dim_v=v.shape[3], scale=call.scale or 0.0, mask="+".join(parts) or "none",
        bias_hides=bias is not None and bool(bias.isneginf().any()),
    )  # fmt: skip
