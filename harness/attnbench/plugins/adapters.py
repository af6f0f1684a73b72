"""Adapters that make an ``Implementation`` from an object that a user names, such as a module class or a function."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn
from torch._library.custom_ops import OPDEFS

from attnbench.cases import Case
from attnbench.interface import Implementation, find_accepted_keywords, reference_arguments
from attnbench.kernel import from_kernel
from attnbench.kernel.differentiable import find_differentiable
from attnbench.plugins.registry import PluginError, load
from attnbench.processes.script_subject import Form
from attnbench.refusals import LacksKeywords

__all__ = ["ModuleImplementation", "adopt", "find_form", "load_implementation"]

# Default values of the reference's constructor. A class whose constructor lacks one of these arguments supports the
# cases in which the argument has its default value.
CONSTRUCTOR_DEFAULTS: dict[str, Any] = {
    "dropout": 0.0, "bias": True, "add_bias_kv": False, "add_zero_attn": False, "kdim": None, "vdim": None,
    "batch_first": False,
}  # fmt: skip


class ModuleImplementation(Implementation):
    """An ``nn.Module`` class with the constructor, forward and parameter names of the reference."""

    def __init__(self, module_class: Callable[..., nn.Module], name: str) -> None:
        self.name = name
        self._class = module_class
        # ``module_class`` may be a functools.partial of a class, which binds some arguments of the class.
        inner = _unwrap_partial(module_class)
        self._constructor = _remove_names(_find_keywords(inner, "__init__"), _find_bound_keywords(module_class))
        self._forward = _find_keywords(inner, "forward")

    @property
    def form(self) -> Form:
        """The keywords that the constructor and the forward method of the class accept."""
        return Form(kind="module class", constructor=_sort_names(self._constructor), call=_sort_names(self._forward))

    def unsupported(self, case: Case) -> LacksKeywords | None:
        """Return a message that names an argument which the case needs and the class lacks; None if there is none."""
        problem = case.problem
        for argument, default in CONSTRUCTOR_DEFAULTS.items():
            if not _accepts(self._constructor, argument) and getattr(problem, argument) != default:
                return LacksKeywords(keywords=(argument,), of="constructor")
        needs = {
            "attn_mask": problem.attention_mask is not None,
            "key_padding_mask": problem.padding_mask is not None,
            "need_weights": problem.need_weights,
            "average_attn_weights": problem.need_weights and not problem.average_attn_weights,
            "is_causal": problem.is_causal,
        }
        for argument, needed in needs.items():
            if needed and not _accepts(self._forward, argument):
                return LacksKeywords(keywords=(argument,), of="forward")
        return None

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Construct the module with the reference's arguments, and load the reference's state."""
        # The module gets the reference's dtype before the weights are loaded, so that float64 weights are not rounded.
        module = self.construct(reference).to(reference.out_proj.weight)
        missing, unexpected = module.load_state_dict(reference.state_dict(), strict=False)
        # The module may have state that the reference lacks: buffers, and parameters that cannot have a gradient, such
        # as a counter. Its other parameters must be those of the reference.
        differing = [*unexpected, *(name for name in missing if name in find_differentiable(module))]
        if differing:
            raise TypeError(
                f"the parameters of the module and of the reference differ in {', '.join(differing)}; "
                "define an attnbench.Implementation whose weights() converts them"
            )
        return module

    def construct(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Construct the module with the reference's arguments.

        An argument that differs from its default is always passed: a class that does not take it then raises an error.
        """
        arguments = reference_arguments(reference)
        required = {name: arguments.pop(name) for name in ("embed_dim", "num_heads")}
        defaults = CONSTRUCTOR_DEFAULTS | {"kdim": reference.embed_dim, "vdim": reference.embed_dim}
        accepted = self._constructor
        given = {
            name: value for name, value in arguments.items() if _accepts(accepted, name) or value != defaults[name]
        }
        return self._class(**required, **given)

    def prepare(self, module: Any, case: Case, inputs: Any) -> Any:  # noqa: ARG002
        """Return a function that calls the module without the arguments that its forward method does not accept.

        An argument that would change the result is not left out: the module then raises an error.
        """
        if self._forward is None:
            return module
        accepted = self._forward

        def call(*positions: Any, **arguments: Any) -> Any:
            kept = {key: value for key, value in arguments.items() if key in accepted or _changes_call(key, arguments)}
            return module(*positions, **kept)

        # The caller may read from the signature which arguments the module takes, and in which order.
        call.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]
        return call


def _changes_call(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether leaving out this argument would change the meaning of a call."""
    if name == "average_attn_weights":
        return bool(arguments.get("need_weights")) and not arguments[name]
    value = arguments[name]
    return value is not None and value is not False


def _find_keywords(owner: type, method: str) -> frozenset[str] | None:
    """Return the names of the keywords that a method accepts, or None if it accepts any keyword.

    A method with ``**keywords`` also accepts the keywords of the same method of its base classes.
    """
    named: frozenset[str] = frozenset()
    for base in owner.__mro__:
        function = vars(base).get(method)
        if base is nn.Module:
            return None
        if function is None:
            continue
        try:
            found = find_accepted_keywords(function)
        except (TypeError, ValueError):  # the method has no signature
            return None
        if found is not None:
            return named | found
        named |= frozenset(inspect.signature(function).parameters)
    return None


def _remove_names(names: frozenset[str] | None, bound: frozenset[str]) -> frozenset[str] | None:
    return None if names is None else names - bound


def _find_bound_keywords(function: Callable[..., Any]) -> frozenset[str]:
    """Return the keywords that ``functools.partial`` has bound, which the harness must not pass again."""
    if not isinstance(function, partial):
        return frozenset()
    return frozenset(function.keywords) | _find_bound_keywords(function.func)


def _sort_names(names: frozenset[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(sorted(names))


def _unwrap_partial(function: Any) -> Any:
    return _unwrap_partial(function.func) if isinstance(function, partial) else function


def _accepts(names: frozenset[str] | None, name: str) -> bool:
    return names is None or name in names


def load_implementation(name: str) -> Implementation:
    """Load the implementation that ``name`` stands for; ``registry.load`` describes the forms of a name.

    Raises: PluginError where the implementation cannot be loaded, or where it registers a torch operator that another
    implementation has registered before. Otherwise both implementations would run the operator registered last.
    """
    # ``OPDEFS`` is private, but is torch's only record of the operators that ``torch.library.custom_op`` registered.
    before = dict(OPDEFS)
    implementation = adopt(load(name), name)
    replaced = [operator for operator, definition in before.items() if OPDEFS.get(operator) is not definition]
    if replaced:
        raise PluginError(
            f"{name!r} registers torch's operator {replaced[0]!r}, which another implementation in the same process "
            "already registered: time the two implementations in separate processes"
        )
    return implementation


def adopt(thing: Any, name: str) -> Implementation:
    """Return ``thing`` if it is an implementation; wrap it in an adapter if it is a module class or a function.

    Raises: PluginError if ``thing`` is anything else.
    """
    if isinstance(thing, type) and issubclass(thing, Implementation):
        thing = thing()
    if isinstance(thing, Implementation):
        return thing
    inner = _unwrap_partial(thing)
    if isinstance(inner, type) and issubclass(inner, nn.Module):
        return ModuleImplementation(thing, name)
    if callable(inner) and not isinstance(inner, type | nn.Module):
        return from_kernel(_declare_keywords(thing, name), name=name)
    raise PluginError(
        f"{name!r} is {type(thing).__name__}; an implementation is an nn.Module class with the reference's "
        "constructor, a function of (q, k, v), or an attnbench.Implementation"
    )


def find_form(name: str) -> Form:
    """Return how a program without the harness calls the object that ``name`` stands for.

    Raises: PluginError where the object cannot be loaded, or where it defines ``prepare``, which only the harness
    calls.
    """
    thing = load(name)
    adopted = adopt(thing, name)
    if adopted is thing or type(adopted) is thing:
        if not type(adopted).prepare.__module__.startswith("attnbench."):
            raise PluginError(f"{name!r} defines prepare(module, case, inputs), which only the harness can call")
        return Form(kind="implementation" if adopted is thing else "implementation class")
    if isinstance(adopted, ModuleImplementation):
        return adopted.form
    return Form(kind="function", call=_sort_names(find_accepted_keywords(_declare_keywords(thing, name))))


def _declare_keywords(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the function with a signature that leaves out the keywords which ``functools.partial`` has bound.

    Raises: PluginError where the function has no signature.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise PluginError(
            f"{name!r} has no signature to read its arguments from: wrap it in a function of (q, k, v) and the "
            "keywords that it needs"
        ) from error
    bound = _find_bound_keywords(function)
    if not bound:
        return function

    def call(*tensors: Any, **keywords: Any) -> Any:
        return function(*tensors, **keywords)

    free = [parameter for key, parameter in signature.parameters.items() if key not in bound]
    call.__signature__ = signature.replace(parameters=free)  # type: ignore[attr-defined]
    return call
