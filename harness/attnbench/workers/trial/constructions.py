"""Find out how a module class is constructed."""

import inspect
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from torch import nn

from attnbench.processes.convention_requests import Construction, Imported
from attnbench.workers.trial.roles import LENGTH, find_size, is_config

__all__ = ["CannotConstruct", "evaluate", "find_construction"]

# Attributes that a configuration may be asked for before it is given up.
MOST_ATTRIBUTES = 40
_OPTIONS = ("dropout", "bias")


class CannotConstruct(Exception):
    """Raised if no usual way of constructing a class works; the argument is the last exception as one line."""


def find_construction(module_class: type[nn.Module]) -> Construction:
    """Return how a class makes a module from embed_dim, num_heads, dropout and bias.

    Raises: CannotConstruct if it cannot be constructed in a usual way.
    """
    parameters = _list_parameters(module_class)
    errors = []
    for found in _list_constructions(module_class, parameters):
        try:
            return _complete(module_class, found)
        except Exception as error:  # noqa: BLE001  # a constructor may raise any exception
            errors.append(f"{type(error).__name__}: {' '.join(str(error).split())}")
    raise CannotConstruct(errors[-1] if errors else "its arguments have no usual names")


def evaluate(construction: Construction, module_class: type[nn.Module], values: Mapping[str, Any]) -> nn.Module:
    """Make a module for values of embed_dim, num_heads, dropout and bias."""
    arguments = {name: _evaluate(expression, values) for name, expression in construction.arguments.items()}
    if construction.config is None:
        return module_class(**arguments)
    return module_class(_find_config_class(construction.config, module_class)(**arguments))


def _evaluate(expression: str, values: Mapping[str, Any]) -> Any:
    if expression == "embed_dim // num_heads":
        return values["embed_dim"] // values["num_heads"]
    return values[expression] if expression in values else literal_eval(expression)


def _list_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one for one in inspect.signature(function).parameters.values() if one.kind in kinds]


def _list_constructions(module_class: type[nn.Module], parameters: list[inspect.Parameter]) -> Iterator[Construction]:
    required = [one for one in parameters if one.default is one.empty]
    configs = [one for one in required if is_config(one.name) or find_size(one.name) is None]
    if len(configs) == 1 and len([one for one in required if find_size(one.name) in ("embed_dim", "num_heads")]) < 2:
        for config in _list_configs(module_class, configs[0]):
            if config.name == SimpleNamespace.__name__:
                yield Construction(arguments={}, config=config)
            else:
                own = _list_parameters(_find_config_class(config, module_class))
                yield Construction(arguments=_name_arguments(own), config=config)
    elif not configs:
        yield Construction(arguments=_name_arguments(parameters))


def _name_arguments(parameters: list[inspect.Parameter]) -> dict[str, str]:
    """Return the expressions of the arguments that are needed: sizes always, others where they have no default."""
    named = {one.name: (find_size(one.name), one.default is one.empty) for one in parameters}
    wanted = ("embed_dim", "num_heads", "batch_first", *_OPTIONS)
    return {
        name: expression
        for name, (expression, required) in named.items()
        if expression is not None and (required or expression in wanted or name in wanted)
    }


def _list_configs(module_class: type[nn.Module], parameter: inspect.Parameter) -> Iterator[Imported]:
    """Yield the classes of which the configuration may be, the likeliest first."""
    home = sys.modules[module_class.__module__]
    annotated = parameter.annotation
    if isinstance(annotated, str):
        annotated = getattr(home, annotated, None)
    found = [annotated] if inspect.isclass(annotated) else []
    found += [one for name, one in vars(home).items() if inspect.isclass(one) and name.endswith(("Config", "Args"))]
    # Of several, the one whose name begins as that of the class.
    found.sort(key=lambda one: one is not annotated and module_class.__name__[:4] != one.__name__[:4])
    for one in dict.fromkeys(found):
        if {"embed_dim", "num_heads"} <= {find_size(own.name) for own in _list_parameters(one)}:
            beside = one.__module__ == module_class.__module__
            yield Imported(name=one.__name__, module="" if beside else one.__module__)
    yield Imported(name=SimpleNamespace.__name__, module=SimpleNamespace.__module__)


def _find_config_class(config: Imported, module_class: type[nn.Module]) -> Any:
    if config.name == SimpleNamespace.__name__:
        return SimpleNamespace
    return getattr(sys.modules[config.module or module_class.__module__], config.name)


def _complete(module_class: type[nn.Module], construction: Construction) -> Construction:
    """Return a construction that works: a plain namespace gets the attributes that the constructor asks for.

    Raises: Exception, the one of the constructor, if it does not work.
    """
    values = {"embed_dim": 24, "num_heads": 3, "dropout": 0.0, "bias": True}
    arguments = dict(construction.arguments)
    for _ in range(MOST_ATTRIBUTES):
        found = Construction(arguments=arguments, config=construction.config)
        try:
            evaluate(found, module_class, values)
        except AttributeError as error:
            expression = _guess(error.name or "")
            if construction.config is None or not isinstance(error.obj, SimpleNamespace) or expression is None:
                raise
            arguments[error.name or ""] = expression
        else:
            return found
    raise CannotConstruct("its configuration has too many attributes")


def _guess(name: str) -> str | None:
    """Return the expression for an attribute of a configuration; None if its name says nothing."""
    known = find_size(name)
    if known is not None:
        return known
    return LENGTH if "len" in name or "size" in name else None
