"""Load objects by name: entry points, ``package.module:attribute`` and ``path/to/file.py:attribute``.

``NAME @ FOLDER`` is the version of the object ``NAME`` in the source tree ``FOLDER``. One process can load this version
and the installed version. A plug-in is imported only when it is needed. A plug-in that cannot be imported therefore
affects only the runs that name it.
"""

import contextlib
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from attnbench.cases import CaseId, Problem
from attnbench.interface import Operator
from attnbench.plugins.current_folder import import_module, is_in_current_folder
from attnbench.plugins.file_folder import FileFolder
from attnbench.plugins.source_tree import SourceTree, find_counterpart_root, find_source

__all__ = [
    "IMPLEMENTATIONS",
    "OPERATORS",
    "NoCounterpart",
    "PluginError",
    "check_name",
    "describe_origin",
    "display_name",
    "find_baseline",
    "find_distribution",
    "find_entry_points",
    "find_operator_baseline",
    "join_lines",
    "list_names",
    "list_operators",
    "load",
    "load_operator",
    "load_problem_types",
    "locate",
    "resolve_in_trees",
    "write_import_lines",
]

IMPLEMENTATIONS = "attnbench.implementations"
OPERATORS = "attnbench.operators"
# Word that messages use for an object, by entry-point group; others are named by their group.
_KINDS = {IMPLEMENTATIONS: "implementation", OPERATORS: "operator"}
# Source code that lets a program find the modules of a folder, after all others.
_FIND_IN_FOLDER = """\
import sys

sys.path.append({folder!r})
"""
# Source code that imports an object from a file, which may import modules beside it. The module is added to
# ``sys.modules``, because torch's compiler looks for the module there.
_IMPORT_FILE = """\
import importlib.util
import sys

sys.path.append({folder!r})
spec = importlib.util.spec_from_file_location("implementation_file", {path!r})
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
implementation = sys.modules[spec.name].{attribute}
"""
# Separator between a name and the folder of a source tree.
_AT = " @ "


class PluginError(Exception):
    """Raised where a name is unknown or ambiguous, or its object cannot be imported; the message is one line."""


class NoCounterpart(PluginError):
    """Raised where a source tree has no other version of an implementation that is there; ``fault`` has no remedy."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"{fault}; name a folder that contains another version of it")
        self.fault = fault


def list_names(group: str = IMPLEMENTATIONS) -> list[str]:
    """Return the registered names, sorted, without importing anything."""
    return sorted({entry.name for entry in find_entry_points(group)})


def describe_origin(name: str, group: str = IMPLEMENTATIONS) -> str:
    """Return ``module:attribute`` and the distribution of a registered name; any other form of a name is unchanged."""
    if ":" in name or _AT in name:
        return name
    entry = _find_entry_point(name, group)
    return f"{entry.value} ({entry.dist.name} {entry.dist.version})" if entry.dist else entry.value


def find_distribution(name: str) -> str | None:
    """Return the distribution that registers an implementation; None if a module, file or source tree is named."""
    if ":" in name or _AT in name:
        return None
    entry = _find_entry_point(name, IMPLEMENTATIONS)
    return entry.dist.name if entry.dist else None


def display_name(name: str) -> str:
    """Return the form of a name that is written into results.

    A path becomes relative to the current directory; of a path outside this directory, only the last part is kept.
    """
    own, at, tree = name.partition(_AT)
    if at:
        return f"{display_name(own)}{at}{_shorten_path(tree)}"
    place, colon, attribute = name.rpartition(":")
    return f"{_shorten_path(place)}{colon}{attribute}" if place.endswith(".py") else name


def _shorten_path(place: str) -> str:
    path = Path(place).resolve()
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def check_name(name: str, group: str = IMPLEMENTATIONS) -> None:
    """Check that a name is registered, or that its form is valid and its file exists, without importing anything.

    Raises: PluginError if the check fails.
    """
    name, at, tree = name.partition(_AT)
    place, colon, attribute = name.rpartition(":")
    if at and not Path(tree).is_dir():
        raise PluginError(f"no such folder: {tree}")
    if not colon:
        _find_entry_point(name, group)
    elif not attribute or not place:
        raise PluginError(f"{name!r} is not a valid name; write package.module:attribute or path/to/file.py:attribute")
    elif place.endswith(".py") and not Path(place).is_file():
        raise PluginError(f"no such file: {place}")


def resolve_in_trees(name: str, tree: Path, label: str = "") -> tuple[str, str]:
    """Return the names of two versions of an implementation: the version in ``tree``, and the installed version.

    Both names have the form ``NAME @ FOLDER``, so both versions are loaded in the same way. Messages call the tree by
    its label, or else by its path.

    Raises: NoCounterpart if the tree has no version, or none that is another; PluginError if there is no installed one.
    """
    check_name(name)
    if _AT in name:
        raise PluginError(f"{name!r} already names a source tree; leave out --base")
    place, _ = _split_name(name, IMPLEMENTATIONS)
    own = find_counterpart_root(place, tree)
    if own is None and find_source(place) is None:
        raise PluginError(
            f"{name!r}: nothing named {place.partition('.')[0]!r} can be imported; install it, or use the folder that "
            "contains it as the current folder"
        )
    if own is None:
        wanted = display_name(name).rpartition(":")[0] if place.endswith(".py") else place.partition(".")[0]
        raise NoCounterpart(f"--base: {label or tree} has no {wanted}, the source of {name!r}")
    if own == tree.resolve():
        raise NoCounterpart(f"--base: {name!r} is already imported from {label or tree}")
    return f"{name}{_AT}{tree.resolve()}", f"{name}{_AT}{own}"


def locate(name: str, group: str = IMPLEMENTATIONS) -> tuple[str, str, str]:
    """Return the module or file, the attribute, and the folder of the source tree that a name stands for.

    The folder is an empty string if the name contains no source tree.

    Raises: PluginError where the name is unknown or ambiguous.
    """
    own, _, tree = name.partition(_AT)
    return *_split_name(own, group), tree


def _split_name(name: str, group: str) -> tuple[str, str]:
    """Return the module or file, and the attribute, that a name stands for.

    The name contains no source tree.
    """
    place, colon, attribute = name.rpartition(":")
    if colon:
        return place, attribute
    entry = _find_entry_point(name, group)
    return entry.module, entry.attr


def load(name: str, group: str = IMPLEMENTATIONS) -> Any:
    """Load the object that ``name`` stands for.

    ``name`` is a registered name, ``package.module:attribute`` or ``path/to/file.py:attribute``. If it is followed
    by ``@ FOLDER``, the object is loaded from the source tree in that folder.

    Raises: PluginError with one line that contains the name and the cause.
    """
    if _AT in name:
        return _load_from_tree(name, group)
    place, colon, attribute = name.rpartition(":") if ":" in name else ("", "", name)
    try:
        if not colon:
            return _find_entry_point(name, group).load()
        module = _import_file(Path(place)) if place.endswith(".py") else import_module(place)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:  # a plug-in may raise any exception on import, and a program may exit
        raise PluginError(f"cannot import {name!r}: {type(error).__name__}: {join_lines(error)}") from error
    return _get_attribute(module, name, place, attribute)


def _load_from_tree(name: str, group: str) -> Any:
    """Load an object by a name of the form ``NAME @ FOLDER`` from the source tree ``FOLDER``."""
    own, _, folder = name.partition(_AT)
    place, attribute = _split_name(own, group)
    try:
        tree = SourceTree.open(Path(folder))
        module = tree.import_file(Path(place)) if place.endswith(".py") else tree.import_module(place)
    except Exception as error:  # a plug-in may raise any exception on import
        raise PluginError(f"cannot import {name!r}: {type(error).__name__}: {join_lines(error)}") from error
    return _get_attribute(module, name, f"{place}{_AT}{folder}", attribute)


def _get_attribute(module: ModuleType, name: str, place: str, attribute: str) -> Any:
    if not attribute:
        raise PluginError(f"{name!r} names no attribute; write {place}:NAME")
    try:
        return attrgetter(attribute)(module)
    except AttributeError:
        public = [key for key in vars(module) if not key.startswith("_")]
        raise PluginError(f"{place} has no attribute {attribute!r}{_suggest_names(attribute, public)}") from None


def write_import_lines(name: str) -> str:
    """Return Python source that imports the object called ``name`` as ``implementation``, without this registry.

    Raises: PluginError if the name is unknown or names a source tree.
    """
    if _AT in name:
        raise PluginError(f"{name!r} names a source tree, which a script cannot import: leave out ' @ FOLDER'")
    place, attribute = _split_name(name, IMPLEMENTATIONS)
    if place.endswith(".py"):
        path = Path(place).resolve()
        return _IMPORT_FILE.format(folder=str(path.parent), path=str(path), attribute=attribute)
    first, _, inner = attribute.partition(".")
    here = is_in_current_folder(place.partition(".")[0])
    find = _FIND_IN_FOLDER.format(folder=str(Path.cwd())) if here else ""
    return f"{find}from {place} import {first} as implementation\n" + (
        f"\nimplementation = implementation.{inner}\n" if inner else ""
    )


def load_operator(name: str) -> Operator:
    """Load the operator that is registered under a name.

    Only registered names are loaded. The name may come from the case id of a stored run, and a stored run must not
    choose which file is imported.

    Raises: PluginError where it cannot be loaded, is not an ``Operator``, or where importing it imports torch.
    """
    _find_entry_point(name, OPERATORS)
    if _imports_torch(name):
        module = _find_entry_point(name, OPERATORS).module
        raise PluginError(
            f"operator {name!r}: importing {module} must not import torch: "
            "import torch inside the functions that use it"
        )
    operator = load(name, OPERATORS)
    if not isinstance(operator, Operator):
        raise PluginError(f"operator {name!r} must be an attnbench.Operator, got a {type(operator).__name__}")
    return operator


@cache
def _imports_torch(name: str) -> bool:
    """Whether the first import of an operator imports torch; False in a process that has imported torch before.

    The command line reads descriptions of operators and must start without torch.
    """
    if "torch" in sys.modules:
        return False
    load(name, OPERATORS)
    return "torch" in sys.modules


def find_baseline(case: str) -> str:
    """Return the name of the baseline for a case id: the implementation that is the reference of the operator."""
    return load_operator(CaseId.parse(case).operator).baseline


@cache
def find_operator_baseline(operator: str) -> str:
    """Return the name of an operator's baseline, or an empty string if the operator cannot be loaded here.

    A stored run may come from another machine, with operators that this machine lacks.
    """
    try:
        return load_operator(operator).baseline
    except PluginError:
        return ""


def load_problem_types() -> dict[str, type[Problem]]:
    """Return the problem class of every registered operator that can be loaded, by operator name.

    An operator that cannot be loaded is left out, so that only the runs that name this operator fail.
    """
    found = {}
    for name in list_names(OPERATORS):
        with contextlib.suppress(PluginError):
            found[name] = load_operator(name).problem
    return found


def list_operators() -> list[str]:
    """Return the names of the operators that can be loaded, sorted."""
    return list(load_problem_types())


def find_entry_points(group: str) -> EntryPoints:
    """Return the entry points of a group in all installed distributions."""
    # To install or remove a distribution changes the modification time of its folder.
    folders = tuple((path, path.stat().st_mtime_ns) for path in map(Path, sys.path) if path.is_dir())
    return _read_entry_points(folders, group)


@lru_cache(maxsize=16)
def _read_entry_points(folders: tuple[tuple[Path, int], ...], group: str) -> EntryPoints:  # noqa: ARG001
    """Return the entry points of a group; reading the metadata of all distributions takes 13 ms."""
    return entry_points(group=group)


def _find_entry_point(name: str, group: str) -> EntryPoint:
    found = {entry.value: entry for entry in find_entry_points(group).select(name=name)}
    if len(found) > 1:
        owners = ", ".join(f"{e.value} from {e.dist.name if e.dist else '?'}" for e in found.values())
        raise PluginError(f"{name!r} is registered more than once: {owners}; ask for one of them as module:attribute")
    if not found:
        kind = _KINDS.get(group, group)
        raise PluginError(f"unknown {kind} {name!r}{_suggest_names(name, list_names(group))}")
    return next(iter(found.values()))


def _suggest_names(name: str, available: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the similar names, and all available names."""
    choices = sorted(available)
    near = get_close_matches(name, choices, n=3)
    meant = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"{meant or ';'} available: {', '.join(choices) or 'none'}"


def _import_file(path: Path) -> ModuleType:
    """Import a Python file, unless it is already imported."""
    if not path.is_file():
        raise PluginError(f"no such file: {path}")
    real = path.resolve()
    return FileFolder.open(real.parent).import_file(real)


def join_lines(error: BaseException) -> str:
    """Return the message of an exception on one line."""
    return " ".join(str(error).split())
