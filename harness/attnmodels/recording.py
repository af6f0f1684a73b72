"""The calls of attention in a model: recorded with exact attention, and intercepted on the path of a function."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from attnmodels.formula import Demand, attend
from attnmodels.inputs import Forward, Plan
from attnmodels.tokens import Tokens

__all__ = [
    "EXACT", "Attend", "Call", "Function", "Given", "Recorder", "Wrap", "intercept", "outside_model", "read_demand",
    "register_exact", "run_plan", "runs_outside_model",
]  # fmt: skip

# Name under which exact attention, which gets every mask in full, is registered with transformers.
EXACT = "attnbench_exact"
# (module, query, key, value, attention_mask, **arguments) -> output (batch, queries, heads, width), and weights or None
Function = Callable[..., tuple[Tensor, Tensor | None]]
Wrap = Callable[[Function], Function]
# Hands what a wrapper makes of an attention function to a model, while the context lasts.
Attend = Callable[[Wrap], AbstractContextManager[None]]
# Numbers below this, which are added to logits, hide a key: exp(-50) is less than rounding in float64. Models hide by
# -100 (Swin), by -10000 (PixArt) or by the least number of a dtype.
HIDING = -50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The arguments of a call of attention."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    others: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of exact attention in float64: what its layer asked for, and the tokens where they are known."""

    layer: str
    # Number of the call among those of this layer in the same forward pass.
    occurrence: int
    query: Tensor
    key: Tensor
    value: Tensor
    demand: Demand
    output: Tensor
    window: int | None
    queries: Tokens | None
    keys: Tokens | None
    # Share of the weights that the layer asks to drop.
    dropout: float = 0.0

    @property
    def own_tokens(self) -> bool:
        """Whether queries and keys are the same tokens."""
        return self.keys is not None and self.queries is not None and torch.equal(self.keys.column, self.queries.column)

    @property
    def judged(self) -> Tensor:
        """Queries whose results matter: those of tokens that see a key. Shape: (batch, 1, queries, 1)."""
        seeing = self.demand.visible.any(-1, keepdim=True).any(1, keepdim=True)
        return seeing if self.queries is None else seeing & self.queries.real[:, None, :, None]


@dataclass(slots=True)
class Recorder:
    """Computes and records every call with exact attention, in float64."""

    names: dict[int, str]
    forward: Forward | None = None
    calls: list[Call] = field(default_factory=list)

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """Record a call, and return its exact attention."""
        q, k, v = (one.detach().double().clone() for one in (query, key, value))
        demand = read_demand(module, q, k, attention_mask, others)
        layer = self.names.get(id(module), type(module).__name__)
        queries, keys = _find_tokens(self.forward, q, k)
        output = attend(demand, q, k, v)
        before = sum(call.layer == layer for call in self.calls)
        window = others.get("sliding_window", getattr(module, "sliding_window", None))
        self.calls.append(
            Call(
                layer=layer, occurrence=before, query=q, key=k, value=v, demand=demand, output=output,
                window=window if isinstance(window, int) and window > 0 else None, queries=queries, keys=keys,
                dropout=float(others.get("dropout") or 0.0),
            )
        )  # fmt: skip
        return output.transpose(1, 2).to(query.dtype).contiguous(), None


def read_demand(module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, others: dict[str, Any]) -> Demand:
    """Read what a layer asks for, from the arguments of its call and from its own attributes."""
    full = torch.ones(q.shape[0], 1, q.shape[2], k.shape[2], dtype=torch.bool)
    bias = others.get("position_bias")
    causal = others.get("is_causal")
    if mask is None:
        causal = getattr(module, "is_causal", False) if causal is None else causal
        visible = full.tril(k.shape[2] - q.shape[2]) if causal and q.shape[2] > 1 else full
    elif mask.dtype == torch.bool:
        visible = full & mask[..., : k.shape[2]]
    else:
        added = mask[..., : k.shape[2]].double()
        shown = added > HIDING
        visible = full & shown
        rest = added.masked_fill(~shown, 0.0)
        if bool(rest.any()):
            bias = rest if bias is None else bias + rest
    scale, sinks = others.get("scaling"), others.get("s_aux", getattr(module, "sinks", None))
    softcap = others.get("softcap", getattr(module, "attn_logit_softcapping", None))
    return Demand(
        visible=visible,
        scale=float(q.shape[-1] ** -0.5 if scale is None else scale),
        softcap=float(softcap) if softcap else None,
        bias=None if bias is None else bias.double(),
        sinks=None if sinks is None else sinks.double().flatten(),
    )


def _find_tokens(forward: Forward | None, q: Tensor, k: Tensor) -> tuple[Tokens | None, Tokens | None]:
    """Return the tokens of queries and keys, which are recognised by their number."""
    if forward is None or forward.queries is None or forward.keys is None:
        return None, None
    own, encoder = forward.queries, forward.encoder
    if len(own.column) != q.shape[0]:
        return None, None
    if encoder is not None and k.shape[2] == len(encoder):
        if q.shape[2] == len(encoder):
            return encoder, encoder
        return (own, encoder) if q.shape[2] == len(own) else (None, None)
    if q.shape[2] != len(own):
        return None, None
    # A cache may have forgotten the keys before a window.
    kept = k.shape[2]
    return own, forward.keys.take(slice(len(forward.keys) - kept, None)) if kept <= len(forward.keys) else None


@contextmanager
def intercept(wrap: Wrap) -> Iterator[None]:
    """Hand the models, instead of each attention function that they look up, what ``wrap`` makes of it."""
    from transformers import AttentionInterface

    original = AttentionInterface.get_interface

    def get_interface(self: Any, attn_implementation: str, default: Function) -> Function:
        return wrap(original(self, attn_implementation, default))

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = original


def register_exact() -> None:
    """Register the name of exact attention, with a mask function that leaves out no mask.

    The mask has the form of eager attention, on which parts of a model that look up no function rely.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    def make_mask(*sizes: Any, **given: Any) -> Any:
        return eager_mask(*sizes, **(given | {"allow_is_bidirectional_skip": False}))

    AttentionInterface.register(EXACT, Recorder({}))
    AttentionMaskInterface.register(EXACT, make_mask)


class _Precision(TorchFunctionMode):
    """Turns casts to float32 into casts to float64, and leaves out dropout, in the code of a model."""

    # Whether code other than the model's runs: an attention function.
    paused: ClassVar[bool] = False

    def __init__(self, *, widen: bool, drop: bool) -> None:
        super().__init__()
        self.widen, self.drop = widen, drop

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if func is F.dropout and not self.drop:
            return args[0]
        if not self.widen:
            return func(*args, **kwargs)
        if func is Tensor.float:
            return args[0].double()
        return func(*map(_widen, args), **{name: _widen(one) for name, one in kwargs.items()})


@contextmanager
def outside_model() -> Iterator[None]:
    """Run code as it is, although a model is running."""
    _Precision.paused = True
    try:
        yield
    finally:
        _Precision.paused = False


def runs_outside_model() -> bool:
    """Whether the code that runs is not the model's."""
    return _Precision.paused


def _widen(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


def run_plan(
    model: Any,
    plan: Plan,
    function: Callable[[Forward], Wrap],
    attend: Attend,
    *,
    widen: bool = False,
    gradients: bool = False,
) -> list[Any]:
    """Return the outputs of the forward passes.

    ``function(forward)`` wraps the attention functions, which ``attend`` hands it.

    ``widen``: casts to float32 inside the model are casts to float64. ``gradients``: outputs have gradients.
    """
    model.train(plan.training)
    cache: dict[str, Any] = {}
    outputs = []
    dtype = next(model.parameters()).dtype
    for forward in plan.forwards:
        arguments = {name: _cast(value, dtype) for name, value in forward.arguments.items()} | cache
        if "encoder_outputs" in cache:
            arguments.pop("input_ids", None)
        precision = _Precision(widen=widen, drop=not plan.training)
        with torch.set_grad_enabled(gradients), attend(function(forward)), precision:
            output = model(**arguments)
        outputs.append(output)
        if plan.cached:
            cache["past_key_values"] = output.past_key_values
            if model.config.is_encoder_decoder:
                from transformers.modeling_outputs import BaseModelOutput

                cache["encoder_outputs"] = BaseModelOutput(output.encoder_last_hidden_state)
    return outputs


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list):
        return [_cast(one, dtype) for one in value]
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
