"""Names to objects: entry points, ``package.module:attribute`` and ``path/to/file.py:attribute``.

Each may be followed by `` @ FOLDER``: the same from another source tree, which can be loaded beside the first.
Nothing is imported before it is asked for, so a plug-in that cannot be imported breaks only the runs that name it.
"""

import ast
import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from attnbench.cases import Problem
from attnbench.interface import Operator
from attnbench.plugins.source_tree import home, source_tree

__all__ = [
    "IMPLEMENTATIONS",
    "OPERATORS",
    "PluginError",
    "baseline",
    "from_trees",
    "known",
    "load",
    "load_lines",
    "load_operator",
    "names",
    "operators",
    "origin",
    "problems",
    "reference_of",
    "shown",
]

IMPLEMENTATIONS = "attnbench.implementations"
OPERATORS = "attnbench.operators"
# Between a name and the folder of a source tree.
_AT = " @ "


class PluginError(Exception):
    """A name that leads nowhere, twice, or to something that cannot be imported; the message is one line."""


def names(group: str = IMPLEMENTATIONS) -> list[str]:
    """Registered names, sorted, without loading anything."""
    return sorted({entry.name for entry in entry_points(group=group)})


def origin(name: str, group: str = IMPLEMENTATIONS) -> str:
    """Where a name comes from: ``module:attribute`` of its entry point and its distribution, or the name itself."""
    if ":" in name or _AT in name:
        return name
    entry = _entry(name, group)
    return f"{entry.value} ({entry.dist.name} {entry.dist.version})" if entry.dist else entry.value


def shown(name: str) -> str:
    """Name as results carry it: a path is told from here, or only its last part where it lies elsewhere."""
    own, at, tree = name.partition(_AT)
    if at:
        return f"{shown(own)}{at}{_from_here(tree)}"
    place, colon, attribute = name.rpartition(":")
    return f"{_from_here(place)}{colon}{attribute}" if place.endswith(".py") else name


def _from_here(place: str) -> str:
    path = Path(place).resolve()
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def known(name: str, group: str = IMPLEMENTATIONS) -> None:
    """Check, without importing it, that a name leads somewhere.

    Raises: PluginError.
    """
    name, at, tree = name.partition(_AT)
    place, colon, attribute = name.rpartition(":")
    if at and not Path(tree).is_dir():
        raise PluginError(f"no such folder: {tree}")
    if not colon:
        _entry(name, group)
    elif not attribute or not place:
        raise PluginError(f"{name!r} is no name; write package.module:attribute or path/to/file.py:attribute")
    elif place.endswith(".py") and not Path(place).is_file():
        raise PluginError(f"no such file: {place}")


def from_trees(name: str, tree: Path) -> tuple[str, str]:
    """Names of an implementation as another tree has it, and as it is found without that tree.

    Both are loaded in the same manner, so that nothing but their code differs.

    Raises: PluginError.
    """
    known(name)
    if _AT in name:
        raise PluginError(f"{name!r} names its source tree already; leave out --base")
    place, _ = _apart(name, IMPLEMENTATIONS)
    own = home(place, tree)
    if own is None:
        wanted = shown(name).rpartition(":")[0] if place.endswith(".py") else place.partition(".")[0]
        raise PluginError(
            f"--base: {tree} has no {wanted}, which {name!r} comes from; name the folder that holds another version"
        )
    if own == tree.resolve():
        raise PluginError(f"--base: {tree} is where {name!r} comes from; name another checkout or folder")
    return f"{name}{_AT}{tree.resolve()}", f"{name}{_AT}{own}"


def _apart(name: str, group: str) -> tuple[str, str]:
    """Module or file, and attribute, that a name without a tree stands for."""
    place, colon, attribute = name.rpartition(":")
    if colon:
        return place, attribute
    entry = _entry(name, group)
    return entry.module, entry.attr


def load(name: str, group: str = IMPLEMENTATIONS) -> Any:
    """Object behind a registered name, ``package.module:attribute`` or ``path/to/file.py:attribute``.

    Raises: PluginError, in one line that names what was asked for and the cause.
    """
    if _AT in name:
        return _of_tree(name, group)
    place, colon, attribute = name.rpartition(":") if ":" in name else ("", "", name)
    try:
        if not colon:
            return _entry(name, group).load()
        module = _file_module(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except PluginError:
        raise
    except Exception as error:  # a plug-in may raise anything on import; it becomes one line
        raise PluginError(f"cannot import {name!r}: {type(error).__name__}: {_one_line(error)}") from error
    return _attribute(module, name, place, attribute)


def _of_tree(name: str, group: str) -> Any:
    """Object of another source tree."""
    own, _, tree = name.partition(_AT)
    place, attribute = _apart(own, group)
    try:
        found = source_tree(Path(tree))
        module = found.file(Path(place)) if place.endswith(".py") else found.module(place)
    except Exception as error:  # a plug-in may raise anything on import; it becomes one line
        raise PluginError(f"cannot import {name!r}: {type(error).__name__}: {_one_line(error)}") from error
    return _attribute(module, name, f"{place}{_AT}{tree}", attribute)


def _attribute(module: ModuleType, name: str, place: str, attribute: str) -> Any:
    if not attribute:
        raise PluginError(f"{name!r} names no attribute; write {place}:NAME")
    try:
        return attrgetter(attribute)(module)
    except AttributeError:
        public = [key for key in vars(module) if not key.startswith("_")]
        raise PluginError(f"{place} has no attribute {attribute!r}{_hint(attribute, public)}") from None


def load_lines(name: str) -> str:
    """Python source that binds ``implementation`` to what a name leads to, without the registry.

    It needs the harness where the name is a plain function's only.

    Raises: PluginError.
    """
    if _AT in name:
        raise PluginError(f"{name!r} is of another source tree, and a script is made of what is found without one")
    place, attribute = _apart(name, IMPLEMENTATIONS)
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


@cache
def reference_of(operator: str) -> str:
    """Name of the implementation that is an operator's reference; empty where nobody here knows the operator.

    For runs that were made elsewhere.
    """
    try:
        return load_operator(operator).baseline
    except PluginError:
        return ""


def problems() -> dict[str, type[Problem]]:
    """Problem type of every registered operator that can be loaded, by its name.

    One that cannot breaks only what names it.
    """
    found = {}
    for name in names(OPERATORS):
        with contextlib.suppress(PluginError):
            found[name] = load_operator(name).problem
    return found


def operators() -> list[str]:
    """Names of the operators that can be loaded, sorted."""
    return list(problems())


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
