"""Reasons why a plug-in cannot be imported, found by reading its source code. No code of the plug-in runs.

A fault is reported only if the import is certain to fail. All other faults appear when the plug-in is loaded.
"""

import ast
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from attnbench.plugins.current_folder import find_top_module
from attnbench.plugins.registry import locate

__all__ = ["find_import_fault"]


def find_import_fault(name: str) -> str | None:
    """Return the message of the error that loading an implementation would raise, or None if no fault is found.

    The faults that can be found are missing files and modules, syntax errors, and missing packages that the plug-in
    imports in its first statements. The source code of the modules that the plug-in imports is not read.

    Raises: PluginError where the name itself is unknown or ambiguous.
    """
    place, _, tree = locate(name)
    if tree:  # code in a source tree is imported by other rules
        return None
    try:
        beside = [Path(place).parent] if place.endswith(".py") else []
        for source in _list_sources(place):
            _check_source(source, beside)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        return f"cannot import {name!r}: {type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _list_sources(place: str) -> Iterator[Path]:
    """Yield the Python files that an import of a module or file runs first.

    These are the files of the packages that contain the module, and then the file of the module itself.

    Raises: ModuleNotFoundError if the module or one of its packages does not exist.
    """
    if place.endswith(".py"):
        yield Path(place)
        return
    root, *rest = place.split(".")
    spec, path = find_top_module(root), root
    for part in (*rest, None):
        if spec is None:
            raise ModuleNotFoundError(f"No module named {path!r}")
        if spec.has_location and spec.origin and spec.origin.endswith(".py"):
            yield Path(spec.origin)
        if part is None:
            return
        path = f"{path}.{part}"
        spec = PathFinder.find_spec(path, spec.submodule_search_locations or [])


def _check_source(source: Path, beside: Sequence[Path]) -> None:
    """Check the syntax of a file, and that the packages that it imports in its first statements exist.

    The folders ``beside`` also have modules that the file finds.

    The check of packages ends at the first statement that is not an import. This statement may change where modules are
    found, or may allow for a missing package.

    Raises: SyntaxError, ModuleNotFoundError; OSError or ValueError where the file cannot be read.
    """
    for statement in ast.parse(source.read_bytes(), filename=str(source)).body:
        match statement:
            case ast.Import(names=names):
                roots = [alias.name.partition(".")[0] for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                roots = [module.partition(".")[0]]
            case ast.ImportFrom() | ast.Expr(value=ast.Constant()):  # a relative import, or the docstring
                roots = []
            case _:
                return
        for root in roots:
            if find_top_module(root, beside) is None:
                raise ModuleNotFoundError(f"No module named {root!r}")
