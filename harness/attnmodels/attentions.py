"""The attention functions that a name can mean: of transformers, an implementation of attnbench, or of a file."""

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

from attnbench.integrations.transformers import register
from attnbench.plugins.registry import PluginError, list_names, load

__all__ = ["is_interface", "register_attention"]

PARAMETERS = ("module", "query", "key", "value", "attention_mask")
# The attribute in which a function declares which masks it takes: a name that transformers knows, or a function that
# makes masks. Without it, transformers makes no mask.
DECLARATION = "mask_function"
# Prefix of the names under which functions of a file are registered.
OWN = "attnmodels_"


def register_attention(name: str, names: Sequence[str] = ()) -> str:
    """Return the value of ``attn_implementation`` that selects a function, which is registered if it is not yet.

    ``names`` are those of another library, in the place of transformers' own.

    Raises: PluginError in one line where there is no such function, or it cannot be an attention function.
    """
    from transformers import AttentionInterface

    known = list(names) or ["eager", *AttentionInterface().keys()]
    if name.startswith("paged|") and not names:
        raise PluginError(
            f"{name!r} needs the cache and the packed inputs of generate_batch, which a forward does not have: name "
            f"{name.removeprefix('paged|')!r}, which computes the same"
        )
    if name in known:
        return name
    if ":" not in name:
        return _register_implementation(name, known)
    found = load(name)
    if not is_interface(found):
        return _register_implementation(name, known)
    if not any(one.kind is one.VAR_KEYWORD for one in inspect.signature(found).parameters.values()):
        raise PluginError(f"{name!r} must take **kwargs, because layers pass arguments that it does not name")
    return _register_function(name, found)


def is_interface(found: object) -> bool:
    """Whether an object has the signature of transformers' attention functions."""
    return _list_parameters(found)[: len(PARAMETERS)] == PARAMETERS


def _list_usable(known: Sequence[str]) -> list[str]:
    """Return the names that are not this program's own, and that a forward can use."""
    return [one for one in known if not one.startswith(("attnbench_", OWN, "paged|"))]


def _list_parameters(found: object) -> tuple[str, ...]:
    if not callable(found) or isinstance(found, type):
        return ()
    try:
        return tuple(inspect.signature(found).parameters)
    except (ValueError, TypeError):
        return ()


def _register_implementation(name: str, known: list[str]) -> str:
    if ":" not in name and name not in (own := list_names()):
        close = get_close_matches(name, [*known, *own], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise PluginError(f"unknown attention {name!r}{hint}; there are {', '.join(_list_usable(known))}")
    try:
        return register(name)
    except (ValueError, TypeError) as error:
        raise PluginError(str(error)) from error


def _register_function(name: str, function: Callable[..., Any]) -> str:
    from transformers import AttentionInterface, AttentionMaskInterface

    # Words of transformers' own functions in a name have effects of their own, so that the name has none of them.
    public = f"{OWN}{len(AttentionInterface())}"
    masks = AttentionMaskInterface()
    declared = getattr(function, DECLARATION, None)
    if isinstance(declared, str) and declared not in masks:
        raise PluginError(
            f"{name!r}: {DECLARATION} must be a name out of {', '.join(masks)}, or a function; got {declared!r}"
        )
    AttentionInterface.register(public, function)
    if declared is not None:
        AttentionMaskInterface.register(public, masks[declared] if isinstance(declared, str) else declared)
    return public
