"""Names to objects: entry points, ``package.module:attribute`` and ``path/to/file.py:attribute``.

Nothing is imported before it is asked for, so a plug-in that cannot be imported breaks only the runs that name it.
"""

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from attnbench.cases import Problem
from attnbench.interface import Operator

__all__ = [
    "IMPLEMENTATIONS",
    "OPERATORS",
    "PluginError",
    "baseline",
    "known",
    "load",
    "load_lines",
    "load_operator",
    "names",
    "origin",
    "problems",
    "shown",
]

IMPLEMENTATIONS = "attnbench.implementations"
OPERATORS = "attnbench.operators"


class PluginError(Exception):
    """A name that leads nowhere, twice, or to something that cannot be imported; the message is one line."""


def names(group: str = IMPLEMENTATIONS) -> list[str]:
    """Registered names, sorted, without loading anything."""
    return sorted({entry.name for entry in entry_points(group=group)})


def origin(name: str, group: str = IMPLEMENTATIONS) -> str:
    """Where a name comes from: ``module:attribute`` of its entry point and its distribution, or the name itself."""
    if ":" in name:
        return name
    entry = _entry(name, group)
    return f"{entry.value} ({entry.dist.name} {entry.dist.version})" if entry.dist else entry.value


def shown(name: str) -> str:
    """Name as results carry it: the path of a file is told from here, or left out where it lies elsewhere."""
    place, colon, attribute = name.rpartition(":")
    if not place.endswith(".py"):
        return name
    path = Path(place).resolve()
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path.name}{colon}{attribute}"


def known(name: str, group: str = IMPLEMENTATIONS) -> None:
    """Check, without importing it, that a name leads somewhere.

    Raises: PluginError.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon:
        _entry(name, group)
    elif not attribute or not place:
        raise PluginError(f"{name!r} is no name; write package.module:attribute or path/to/file.py:attribute")
    elif place.endswith(".py") and not Path(place).is_file():
        raise PluginError(f"no such file: {place}")


def load(name: str, group: str = IMPLEMENTATIONS) -> Any:
    """Object behind a registered name, ``package.module:attribute`` or ``path/to/file.py:attribute``.

    Raises: PluginError, in one line that names what was asked for and the cause.
    """
    place, colon, attribute = name.rpartition(":") if ":" in name else ("", "", name)
    try:
        if not colon:
            return _entry(name, group).load()
        module = _file_module(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except PluginError:
        raise
    except Exception as error:  # a plug-in may raise anything on import; it becomes one line
        raise PluginError(f"cannot import {name!r}: {type(error).__name__}: {_one_line(error)}") from error
    if not attribute:
        raise PluginError(f"{name!r} names no attribute; write {place}:NAME")
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = [key for key in vars(module) if not key.startswith("_")]
        raise PluginError(f"{place} has no attribute {attribute!r}{_hint(attribute, public)}") from None


def load_lines(name: str) -> str:
    """Python source that binds ``implementation`` to what a name leads to, without the registry.

    It needs the harness where the name is a plain function's only.

    Raises: PluginError.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon:
        entry = _entry(name, IMPLEMENTATIONS)
        place, attribute = entry.module, entry.attr
    if place.endswith(".py"):
        source: Path | None = Path(place).resolve()
        lines = f"import runpy\n\nimplementation = runpy.run_path({str(source)!r})[{attribute!r}]\n"
    else:
        found = importlib.util.find_spec(place)
        source = Path(found.origin) if found and found.origin else None
        lines = f"from {place} import {attribute} as implementation\n"
    if source is None or source.suffix != ".py" or not _defines(source, attribute):
        return lines
    # A function of split heads needs the projections around it, which are the harness's.
    return f"from attnbench.kernel import from_kernel\n{lines}\nimplementation = from_kernel(implementation)\n"


def _defines(source: Path, name: str) -> bool:
    """Whether a file has a plain function of this name."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)


def load_operator(name: str) -> Operator:
    """Operator registered under a name."""
    operator: Operator = load(name, OPERATORS)
    return operator


def baseline(case: str) -> str:
    """Name of the implementation that is the reference of a case, given by its id."""
    return load_operator(case.partition("/")[0]).baseline


def problems() -> dict[str, type[Problem]]:
    """Problem type of every registered operator, by operator name."""
    return {name: load_operator(name).problem for name in names(OPERATORS)}


def _entry(name: str, group: str) -> EntryPoint:
    found = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if len(found) > 1:
        owners = ", ".join(f"{e.value} from {e.dist.name if e.dist else '?'}" for e in found.values())
        raise PluginError(f"{name!r} is registered more than once: {owners}; ask for one of them as module:attribute")
    if not found:
        kind = group.rpartition(".")[2].rstrip("s")
        raise PluginError(f"unknown {kind} {name!r}{_hint(name, names(group))}")
    return next(iter(found.values()))


def _hint(name: str, available: Iterable[str]) -> str:
    choices = sorted(available)
    near = get_close_matches(name, choices, n=3)
    meant = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"{meant or ';'} available: {', '.join(choices) or 'none'}"


def _file_module(path: Path) -> ModuleType:
    """Module of a Python file outside any package, imported once under a name made from its path."""
    if not path.is_file():
        raise PluginError(f"no such file: {path}")
    name = "attnbench_file_" + re.sub(r"\W", "_", str(path.resolve()))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"cannot read {path} as a Python module")
    module = importlib.util.module_from_spec(spec)
    # Registered first, so that dataclasses and pickles in the file find their module.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
