"""Find out how a module class is constructed."""

import inspect
import re
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace
from torch import nn

from attnbench.checks.runs import describe_exception
from attnbench.processes.convention_requests import Configuration, Construction, Imported
from attnbench.workers.trial.roles import SIZED, find_size, is_config

__all__ = ["CannotConstruct", "evaluate", "find_construction"]

# Attributes that a configuration may be asked for before it is given up.
MOST_ATTRIBUTES = 40


class CannotConstruct(Exception):
    """Raised if no usual way of constructing a class works; the argument is the last exception as one line."""


def find_construction(module_class: type[nn.Module]) -> Construction:
    """Return how a class makes a module from embed_dim, num_heads, dropout and bias.

    Raises: CannotConstruct if it cannot be constructed in a usual way.
    """
    error = ""
    for found in _list_constructions(module_class):
        try:
            return _complete(module_class, found)
        except Exception as raised:  # noqa: BLE001  # a constructor may raise any exception
            error = describe_exception(raised)
    raise CannotConstruct(error or "its arguments have no usual names")


def evaluate(construction: Construction, module_class: type[nn.Module], values: Mapping[str, Any]) -> nn.Module:
    """Make a module for values of embed_dim, num_heads, dropout and bias."""
    config = construction.config
    given = _evaluate(construction.arguments, values)
    if config is not None:
        given[config.name] = _find_class(config.made_by, module_class)(**_evaluate(config.arguments, values))
    return module_class(**given)


def _evaluate(arguments: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    known = {**values, "embed_dim // num_heads": values["embed_dim"] // values["num_heads"]}
    return {
        name: known[expression] if expression in known else literal_eval(expression)
        for name, expression in arguments.items()
    }


def _list_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # the class has no signature
        return []
    return [one for one in parameters if one.kind in kinds]


def _list_constructions(module_class: type[nn.Module]) -> Iterator[Construction]:
    """Yield ways of making a module, with a configuration first: a class that takes one may need it in its calls."""
    parameters = _list_parameters(module_class)
    unknown = [one for one in parameters if one.default is one.empty and find_size(one.name) is None]
    configs = [one for one in parameters if is_config(one.name)] or unknown
    own = _name_arguments([one for one in parameters if one not in configs])
    if len(configs) == 1:
        for made_by in _list_configs(module_class, configs[0], has_sizes={"embed_dim", "num_heads"} <= {*own.values()}):
            arguments = {}
            if made_by.name != SimpleNamespace.__name__:
                arguments = _name_arguments(_list_parameters(_find_class(made_by, module_class)))
            config = Configuration(name=configs[0].name, made_by=made_by, arguments=arguments)
            yield Construction(arguments=own, config=config)
    if not unknown:
        yield Construction(arguments=own)


def _name_arguments(parameters: list[inspect.Parameter]) -> dict[str, str]:
    """Return the expressions of the arguments that are needed: sizes, and what has no default."""
    found = {}
    for one in parameters:
        expression, is_required = find_size(one.name), one.default is one.empty
        # A default of None is replaced by the constructor, with a size that fits the others. A rate of dropout is 0.
        is_given = expression in SIZED if one.default is not None else False
        is_dropped = expression == "0.0" and bool(one.default)
        if expression is not None and (is_required or is_given or is_dropped or one.name == "batch_first"):
            found[one.name] = expression
    return found


def _list_configs(
    module_class: type[nn.Module], parameter: inspect.Parameter, *, has_sizes: bool
) -> Iterator[Imported]:
    """Yield the classes of which the configuration may be, the likeliest first.

    ``has_sizes``: the module's class gets the sizes itself, so that the configuration need not have them.
    """
    home = sys.modules[module_class.__module__]
    annotated = [getattr(home, name, None) for name in re.findall(r"\w+", str(parameter.annotation))]
    found = [one for one in annotated if inspect.isclass(one)]
    found += [one for name, one in vars(home).items() if inspect.isclass(one) and name.endswith(("Config", "Args"))]
    # Of several that are not annotated, the one whose name begins as that of the class.
    found.sort(key=lambda one: one not in annotated and module_class.__name__[:4] != one.__name__[:4])
    for one in dict.fromkeys(found):
        if has_sizes or {"embed_dim", "num_heads"} <= {find_size(own.name) for own in _list_parameters(one)}:
            beside = one.__module__ == module_class.__module__
            yield Imported(name=one.__name__, module="" if beside else one.__module__)
    yield Imported(name=SimpleNamespace.__name__, module=SimpleNamespace.__module__)


def _find_class(imported: Imported, module_class: type[nn.Module]) -> Any:
    return getattr(sys.modules[imported.module or module_class.__module__], imported.name)


def _complete(module_class: type[nn.Module], construction: Construction) -> Construction:
    """Return a construction that works: a plain namespace gets the attributes that the constructor asks for.

    Raises: Exception, the one of the constructor, if it does not work.
    """
    values = {"embed_dim": 24, "num_heads": 3, "dropout": 0.0, "bias": True}
    config = construction.config
    for _ in range(MOST_ATTRIBUTES):
        found = Construction(arguments=construction.arguments, config=config)
        try:
            evaluate(found, module_class, values)
        except AttributeError as error:
            expression = find_size(error.name or "")
            if config is None or not isinstance(error.obj, SimpleNamespace) or expression is None:
                raise
            config = replace(config, arguments={**config.arguments, str(error.name): expression})
        else:
            return found
    raise CannotConstruct("its configuration has too many attributes")
