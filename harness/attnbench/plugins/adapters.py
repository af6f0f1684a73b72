"""Whatever a user named, as an implementation: one of ours as it is, a module class, or a plain function."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn
from torch._library.custom_ops import OPDEFS

from attnbench.cases import Case
from attnbench.interface import Implementation, accepted, reference_arguments
from attnbench.kernel import from_kernel
from attnbench.plugins.registry import PluginError, load

__all__ = ["ModuleImplementation", "adopt", "load_implementation"]

# What the reference's constructor and forward take when an argument is not given; a class that lacks an argument is
# right where a case leaves it at that.
CONSTRUCTOR_DEFAULTS: dict[str, Any] = {
    "dropout": 0.0, "bias": True, "add_bias_kv": False, "add_zero_attn": False, "kdim": None, "vdim": None,
    "batch_first": False,
}  # fmt: skip


class ModuleImplementation(Implementation):
    """A plain ``nn.Module`` class with the reference's constructor, forward and parameter names."""

    def __init__(self, module_class: Callable[..., nn.Module], name: str) -> None:
        self.name = name
        self._class = module_class
        # A class may stand inside functools.partial, with arguments of its own.
        inner = _innermost(module_class)
        self._constructor = _without(_taken(inner, "__init__"), _bound(module_class))
        self._forward = _taken(inner, "forward")

    def unsupported(self, case: Case) -> str | None:
        """Refuse what needs an argument that the class's signatures do not have."""
        problem = case.problem
        for argument, default in CONSTRUCTOR_DEFAULTS.items():
            if not _has(self._constructor, argument) and getattr(problem, argument) != default:
                return f"its constructor takes no {argument}"
        needs = {
            "attn_mask": problem.attention_mask is not None,
            "key_padding_mask": problem.padding_mask is not None,
            "need_weights": problem.need_weights,
            "average_attn_weights": problem.need_weights and not problem.average_attn_weights,
            "is_causal": problem.is_causal,
        }
        for argument, needed in needs.items():
            if needed and not _has(self._forward, argument):
                return f"its forward takes no {argument}"
        return None

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """The class, constructed like the reference and loaded with its state.

        Every argument that is not left at its default is handed over, so that a class without it refuses it itself.
        """
        arguments = reference_arguments(reference)
        required = {name: arguments.pop(name) for name in ("embed_dim", "num_heads")}
        defaults = CONSTRUCTOR_DEFAULTS | {"kdim": reference.embed_dim, "vdim": reference.embed_dim}
        given = {
            name: value for name, value in arguments.items() if _has(self._constructor, name) or value != defaults[name]
        }
        # In the reference's dtype before it is loaded: a float64 weight must not pass through float32.
        module = self._class(**required, **given).to(reference.out_proj.weight)
        missing, unexpected = module.load_state_dict(reference.state_dict(), strict=False)
        # Buffers of its own are its own affair; parameters are not.
        strangers = [*unexpected, *(name for name in missing if name in dict(module.named_parameters()))]
        if strangers:
            raise TypeError(
                f"its parameters and the reference's differ in {', '.join(strangers)}; "
                "an attnbench.Implementation with weights() can hold them otherwise"
            )
        return module

    def prepare(self, module: Any, case: Case, inputs: Any) -> Any:  # noqa: ARG002
        """The module, called with those arguments that its forward has, and with those that mean something."""
        if self._forward is None:
            return module
        known = self._forward

        def call(**arguments: Any) -> Any:
            return module(
                **{name: value for name, value in arguments.items() if name in known or _means(name, arguments)}
            )

        return call


def _means(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether an argument of the call asks for something that leaving it out would not give."""
    if name == "average_attn_weights":
        return bool(arguments.get("need_weights")) and not arguments[name]
    value = arguments[name]
    return value is not None and value is not False


def _taken(owner: type, method: str) -> frozenset[str] | None:
    """Names that a method takes as keywords, or None where it takes any.

    One that hands on what it does not name (``**keywords``) takes what the class above it takes.
    """
    named: frozenset[str] = frozenset()
    for base in owner.__mro__:
        function = vars(base).get(method)
        if base is nn.Module:
            return None
        if function is None:
            continue
        try:
            found = accepted(function)
        except (TypeError, ValueError):  # no signature can be found
            return None
        if found is not None:
            return named | found
        named |= frozenset(inspect.signature(function).parameters)
    return None


def _without(names: frozenset[str] | None, bound: frozenset[str]) -> frozenset[str] | None:
    return None if names is None else names - bound


def _bound(function: Callable[..., Any]) -> frozenset[str]:
    """Keywords that ``functools.partial`` has bound: what the user chose is not chosen again."""
    return frozenset(function.keywords) | _bound(function.func) if isinstance(function, partial) else frozenset()


def _innermost(function: Any) -> Any:
    return _innermost(function.func) if isinstance(function, partial) else function


def _has(names: frozenset[str] | None, name: str) -> bool:
    return names is None or name in names


def load_implementation(name: str) -> Implementation:
    """Implementation under a registered name, ``package.module:attribute`` or ``path/to/file.py:attribute``.

    Raises: PluginError, also where it takes the place of an operator of torch's that another one registered: both
    would then run the code of the later one.
    """
    # Private, and the only place where torch says what ``torch.library.custom_op`` has registered.
    before = dict(OPDEFS)
    found = adopt(load(name), name)
    taken = [operator for operator, one in before.items() if OPDEFS.get(operator) is not one]
    if taken:
        raise PluginError(
            f"{name!r} registers torch's operator {taken[0]!r}, which another implementation in the same process "
            "registered before: they cannot take turns"
        )
    return found


def adopt(thing: Any, name: str) -> Implementation:
    """An implementation made of ``thing``.

    Raises: PluginError where it is none and cannot be made one.
    """
    if isinstance(thing, type) and issubclass(thing, Implementation):
        thing = thing()
    if isinstance(thing, Implementation):
        return thing
    inner = _innermost(thing)
    if isinstance(inner, type) and issubclass(inner, nn.Module):
        return ModuleImplementation(thing, name)
    if callable(inner) and not isinstance(inner, type | nn.Module):
        return from_kernel(_told(thing, name), name=name)
    raise PluginError(
        f"{name!r} is {type(thing).__name__}; an implementation is an nn.Module class with the reference's "
        "constructor, a function of (q, k, v), or an attnbench.Implementation"
    )


def _told(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function whose signature says which keywords it can be handed.

    Raises: PluginError where it has none.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise PluginError(
            f"{name!r} does not say which arguments it takes: call it in a function of (q, k, v) with those keywords "
            "that it needs"
        ) from error
    bound = _bound(function)
    if not bound:
        return function

    def call(*tensors: Any, **keywords: Any) -> Any:
        return function(*tensors, **keywords)

    free = [parameter for key, parameter in signature.parameters.items() if key not in bound]
    call.__signature__ = signature.replace(parameters=free)  # type: ignore[attr-defined]
    return call
