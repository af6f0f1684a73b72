"""Top-level modules: where a process finds them, in which the current folder comes last.

The installed command does not look for modules in the current folder, but ``python -m`` does. The current folder is
therefore looked into where a name stands for no other module.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

__all__ = ["find_top_module", "import_module", "is_in_current_folder"]


def find_top_module(name: str, folders: Sequence[Path] = ()) -> ModuleSpec | None:
    """Find a top-level module on ``sys.path``, else in the current folder, else in ``folders``; nothing is imported.

    Raises: ValueError if the module was loaded without a spec.
    """
    last = [str(folder) for folder in (Path.cwd(), *folders)]
    return importlib.util.find_spec(name) or PathFinder.find_spec(name, last)


def is_in_current_folder(name: str) -> bool:
    """Whether a top-level module is found in the current folder, and in no other place before it."""
    own, found = PathFinder.find_spec(name, [str(Path.cwd())]), find_top_module(name)
    return own is not None and found is not None and _list_places(own) == _list_places(found)


def import_module(name: str) -> ModuleType:
    """Import a module; if it is in the current folder alone, this folder becomes the last in which modules are found.

    Raises: ImportError, and all exceptions that the module raises.
    """
    folder = str(Path.cwd())
    if folder not in sys.path and is_in_current_folder(name.partition(".")[0]):
        sys.path.append(folder)
    return importlib.import_module(name)


def _list_places(spec: ModuleSpec) -> list[Path]:
    """Return the file of a module, or the folders of a package without one."""
    return [Path(place).resolve() for place in (spec.submodule_search_locations or [spec.origin or ""])]
