"""The library of a model: how its calls of attention are intercepted, and which names of functions it has.

transformers looks a function up in a registry. diffusers has a dispatcher, which drops every argument that a backend
does not take, so that it is intercepted above that. Every other model calls ``scaled_dot_product_attention``, as some
processors of diffusers do.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from attnbench.plugins.registry import PluginError
from attnmodels.attentions import register_attention
from attnmodels.recording import EXACT, Function, Wrap, intercept, register_exact, runs_outside_model

__all__ = ["Diffusers", "Torch", "Transformers"]

_SDPA = F.scaled_dot_product_attention
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


class Transformers:
    """Models that look their attention function up in the registry of transformers."""

    called = "no attention function of transformers"

    def find(self, name: str) -> Any:
        """Return what selects a function; None selects exact attention.

        Raises: PluginError in one line where there is no such function.
        """
        return register_attention(name)

    def select(self, model: Any, found: Any) -> None:
        """Let a model call a function."""
        if found is None:
            register_exact()
            # Other paths of experts know no float64.
            model.set_experts_implementation("eager")
        model.set_attn_implementation(EXACT if found is None else found)

    def intercept(self, wrap: Wrap, found: Any) -> AbstractContextManager[None]:  # noqa: ARG002
        """Hand the model, instead of the function, what ``wrap`` makes of it."""
        return intercept(wrap)


class Torch(Transformers):
    """Models whose layers call ``scaled_dot_product_attention``; the layer is the innermost module that runs."""

    called = "no scaled_dot_product_attention"
    names: tuple[str, ...] = ("eager", "sdpa")

    def find(self, name: str) -> Any:
        """Return the function, or a name that the library itself knows."""
        from transformers import AttentionInterface

        public = register_attention(name, self.names)
        return public if public in self.names else AttentionInterface()[public]

    def choose(self, found: Any) -> Function:
        """Return the function; names of a library that mean no function of its own call torch's."""
        return found if callable(found) else _call_math if found == "eager" else _call_sdpa

    def select(self, model: Any, found: Any) -> None:
        """Do nothing: the function is called in the place of what the model calls."""

    @contextmanager
    def intercept(self, wrap: Wrap, found: Any) -> Iterator[None]:
        """Call what ``wrap`` makes of a function in the place of ``scaled_dot_product_attention``."""
        stack: list[nn.Module] = []

        def attend(*args: Any, **given: Any) -> Tensor:
            given = dict(zip(_PARAMETERS, args, strict=False)) | given
            return _call_on_heads(wrap(self.choose(found)), stack[-1], **given)

        def replacement(*args: Any, **given: Any) -> Tensor:
            return _SDPA(*args, **given) if runs_outside_model() else attend(*args, **given)

        def leave(*_: Any) -> None:
            stack.pop()

        hooks = [
            register_module_forward_pre_hook(lambda module, _: stack.append(module)),
            register_module_forward_hook(leave, always_call=True),
        ]
        # Functions that torch itself calls, such as that of nn.MultiheadAttention, are not seen by a mode.
        F.scaled_dot_product_attention = replacement
        try:
            with _Calls(attend), self.intercept_dispatcher(wrap, found, stack):
                yield
        finally:
            F.scaled_dot_product_attention = _SDPA
            for hook in hooks:
                hook.remove()

    @contextmanager
    def intercept_dispatcher(self, wrap: Wrap, found: Any, stack: list[nn.Module]) -> Iterator[None]:  # noqa: ARG002
        """Intercept what a library calls instead of ``scaled_dot_product_attention``."""
        yield


class Diffusers(Torch):
    """Models of diffusers, whose dispatcher has backends."""

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the backends."""
        from diffusers.models.attention_dispatch import AttentionBackendName

        return (*(one.value for one in AttentionBackendName), "eager", "sdpa")

    def find(self, name: str) -> Any:
        """Return the function, or the name of a backend.

        Raises: PluginError where the backend cannot run on this machine.
        """
        from diffusers.models import attention_dispatch as dispatch

        found = super().find(name)
        if found in self.names[:-2]:
            backend = dispatch.AttentionBackendName(found)
            try:
                # The library's own check, which set_attention_backend makes of a model.
                dispatch._check_attention_backend_requirements(backend)  # noqa: SLF001
            except (RuntimeError, ImportError) as error:
                raise PluginError(f"backend {name!r} of diffusers cannot run here: {error}") from error
            if "hub" in found:
                raise PluginError(f"backend {name!r} of diffusers downloads its kernel: name another one")
        return found

    @contextmanager
    def intercept_dispatcher(self, wrap: Wrap, found: Any, stack: list[nn.Module]) -> Iterator[None]:
        """Call what ``wrap`` makes of a function in the place of the dispatcher, wherever it was imported."""
        from diffusers.models.attention_dispatch import dispatch_attention_fn

        original: Callable[..., Tensor] = dispatch_attention_fn
        parameters = inspect.signature(original)

        def attend(*args: Any, **given: Any) -> Tensor:
            if runs_outside_model():
                output: Tensor = original(*args, **given)
                return output
            call = parameters.bind(*args, **given).arguments
            mask = call.get("attn_mask")
            if mask is not None and mask.shape == (call["key"].shape[0], call["key"].shape[1]):
                # The dispatcher documents a mask of this shape as one of the keys.
                mask = mask[:, None, None]
            function = self.choose(found)
            if isinstance(found, str) and found not in Torch.names:
                function = partial(_call_backend, original, call | {"backend": found})
            heads = {name: call[name].transpose(1, 2) for name in ("query", "key", "value")}
            rest = {name: call[name] for name in ("dropout_p", "is_causal", "scale") if name in call}
            return _call_on_heads(wrap(function), stack[-1], **heads, attn_mask=mask, **rest).transpose(1, 2)

        importing = [one for one in list(sys.modules.values()) if vars(one).get("dispatch_attention_fn") is original]
        for one in importing:
            one.dispatch_attention_fn = attend  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for one in importing:
                one.dispatch_attention_fn = original  # type: ignore[attr-defined]


def _call_backend(
    dispatch: Any, call: dict[str, Any], module: nn.Module, query: Tensor, key: Tensor, value: Tensor,  # noqa: ARG001
    attention_mask: Tensor | None, **others: Any,  # noqa: ARG001
) -> tuple[Tensor, None]:  # fmt: skip
    """Compute attention by a backend of diffusers, with the mask in the shape that the model gave."""
    heads = {"query": query.transpose(1, 2), "key": key.transpose(1, 2), "value": value.transpose(1, 2)}
    return dispatch(**call | heads | {"dropout_p": others["dropout"]}), None


class _Calls(TorchFunctionMode):
    """Replaces ``scaled_dot_product_attention`` in the code of a model, also where it was imported by name."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.attend = attend

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        replaced = func is _SDPA and not runs_outside_model()
        return (self.attend if replaced else func)(*args, **(kwargs or {}))


def _call_on_heads(
    function: Function, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *,
    attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001
) -> Tensor:  # fmt: skip
    """Call an attention function with arguments of ``scaled_dot_product_attention``, of any number of dimensions.

    Shape: query (..., queries, width); returns the same.
    """
    shape = query.shape
    if attn_mask is not None and query.dim() > 4:
        attn_mask = attn_mask.expand(*shape[:-1], key.shape[-2]).flatten(0, -4)
    q, k, v = (
        one[:, None] if one.dim() == 3 else one.reshape(-1, *one.shape[-3:]) for one in (query, key, value)
    )  # fmt: skip
    if attn_mask is not None and attn_mask.dim() == 3 == query.dim():
        attn_mask = attn_mask[:, None]
    others = {"dropout": dropout_p, "scaling": scale, "is_causal": is_causal}
    return function(module, q, k, v, attn_mask, **others)[0].transpose(1, 2).reshape(*shape[:-1], value.shape[-1])


def _call_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any  # noqa: ARG001
) -> tuple[Tensor, None]:  # fmt: skip
    """Compute attention by ``scaled_dot_product_attention``."""
    output = _SDPA(
        query, key, value, attn_mask=attention_mask, dropout_p=others["dropout"], is_causal=others["is_causal"],
        scale=others["scaling"], enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return output.transpose(1, 2), None


def _call_math(*args: Any, **others: Any) -> tuple[Tensor, None]:
    """Compute attention by the plain formula of ``scaled_dot_product_attention``."""
    with sdpa_kernel(SDPBackend.MATH):
        return _call_sdpa(*args, **others)
