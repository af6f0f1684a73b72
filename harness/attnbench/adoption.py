"""Whatever a user named, as an implementation: one of ours as it is, a module class, or a plain function."""

import inspect
from typing import Any

from torch import nn

from attnbench.cases import Case
from attnbench.interface import Implementation, accepted, reference_arguments
from attnbench.kernel import from_kernel
from attnbench.registry import PluginError, load

__all__ = ["ModuleImplementation", "adopt", "load_implementation"]

# What the reference's constructor and forward take when an argument is not given; a class that lacks an argument is
# right where a case leaves it at that.
CONSTRUCTOR_DEFAULTS: dict[str, Any] = {
    "dropout": 0.0, "bias": True, "add_bias_kv": False, "add_zero_attn": False, "kdim": None, "vdim": None,
    "batch_first": False,
}  # fmt: skip


class ModuleImplementation(Implementation):
    """A plain ``nn.Module`` class with the reference's constructor, forward and parameter names."""

    def __init__(self, module_class: type[nn.Module], name: str) -> None:
        self.name = name
        self._class = module_class
        self._constructor = accepted(module_class)
        self._forward = accepted(module_class.forward)

    def unsupported(self, case: Case) -> str | None:
        """Refuse what needs an argument that the class's signatures do not have."""
        problem = case.problem
        for argument, default in CONSTRUCTOR_DEFAULTS.items():
            if not self._takes(self._constructor, argument) and getattr(problem, argument) != default:
                return f"its constructor takes no {argument}"
        needs = {
            "attn_mask": problem.attention_mask is not None,
            "key_padding_mask": problem.padding_mask is not None,
            "need_weights": problem.need_weights,
            "average_attn_weights": problem.need_weights and not problem.average_attn_weights,
            "is_causal": problem.is_causal,
        }
        for argument, needed in needs.items():
            if needed and not self._takes(self._forward, argument):
                return f"its forward takes no {argument}"
        return None

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """The class, constructed like the reference and loaded with its state."""
        arguments = reference_arguments(reference)
        required = {name: arguments.pop(name) for name in ("embed_dim", "num_heads")}
        given = {name: value for name, value in arguments.items() if self._takes(self._constructor, name)}
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
        """The module, called with those arguments that its forward has."""
        if self._forward is None:
            return module
        known = self._forward
        return lambda **arguments: module(**{name: value for name, value in arguments.items() if name in known})

    @staticmethod
    def _takes(names: frozenset[str] | None, name: str) -> bool:
        return names is None or name in names


def load_implementation(name: str) -> Implementation:
    """Implementation under a registered name, ``package.module:attribute`` or ``path/to/file.py:attribute``."""
    return adopt(load(name), name)


def adopt(thing: Any, name: str) -> Implementation:
    """An implementation made of ``thing``.

    Raises: PluginError where it is none and cannot be made one.
    """
    if isinstance(thing, type) and issubclass(thing, Implementation):
        thing = thing()
    if isinstance(thing, Implementation):
        return thing
    if isinstance(thing, type) and issubclass(thing, nn.Module):
        return ModuleImplementation(thing, name)
    if inspect.isfunction(thing):
        return from_kernel(thing, name=name)
    raise PluginError(
        f"{name!r} is {type(thing).__name__}; an implementation is an nn.Module class with the reference's "
        "constructor, a function of (q, k, v), or an attnbench.Implementation"
    )
