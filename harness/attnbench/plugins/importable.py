"""Find the name by which a new process can import an object."""

import inspect
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from attnbench.interface import Implementation
from attnbench.plugins.file_objects import read_name
from attnbench.plugins.registry import IMPLEMENTATIONS, PluginError, find_entry_points

__all__ = ["build_search_path", "find_name"]


def find_name(thing: object) -> str:
    """Return the name by which a new process imports an implementation, given the object or its name.

    Raises: PluginError if no new process can import the object; the message is one line with the remedy.
    """
    if isinstance(thing, str):
        return read_name(thing)
    for entry in find_entry_points(IMPLEMENTATIONS):
        if getattr(sys.modules.get(entry.module), entry.attr, entry) is thing:
            return entry.name
    module, attribute = _find_binding(thing)
    return f"{_find_place(module, attribute)}:{attribute}"


def build_search_path() -> str:
    """Return the PYTHONPATH with which a new process finds the same modules as this process."""
    own = {Path(path) for path in sysconfig.get_paths().values()}
    # Every process finds the standard library and site-packages without PYTHONPATH.
    others = (Path(entry).absolute() for entry in sys.path if not entry.endswith(".zip"))
    return os.pathsep.join(str(path) for path in others if not {path, path.parent} & own)


def _find_binding(thing: object) -> tuple[ModuleType, str]:
    """Return a module that contains an object, and the name of the module's attribute whose value is the object."""
    if not (inspect.isclass(thing) or inspect.isfunction(thing) or isinstance(thing, Implementation)):
        raise PluginError(
            f"{type(thing).__name__} objects are not implementations: pass the class, a function of (q, k, v), an "
            "attnbench.Implementation, or the name of one of these"
        )
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    home = sys.modules.get(getattr(thing, "__module__", ""))
    if home is not None and getattr(home, name, None) is thing:
        return home, name
    # Instances and nested functions do not know the name to which they are bound. ``sys.modules`` lists modules in the
    # order in which their imports ended. The first module that contains the object is therefore the module that defines
    # it. The exception is ``__main__``, which is listed before the modules that it imports, and is therefore searched
    # last.
    for module in sorted(sys.modules.values(), key=lambda module: module is sys.modules["__main__"]):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is thing:
                return module, attribute
    raise PluginError(
        f"a new process cannot import {name!r}, which no module contains: bind it to a name at the top level of a file"
    )


def _find_place(module: ModuleType, attribute: str) -> str:
    """Return the name or the file by which a new process imports a module."""
    name, path = module.__name__, Path(getattr(module, "__file__", None) or "-")
    is_file = path.suffix == ".py" and path.is_file()
    if name == "__main__":
        spec = getattr(module, "__spec__", None)
        if spec is not None:  # the program was started with python -m
            return str(spec.name)
        if not is_file:
            raise PluginError(
                f"{attribute!r} was defined in an interactive session, but checks run in another process: put it in a "
                f"file, say my_attention.py, and pass 'my_attention.py:{attribute}'"
            )
        return _shorten_path(path)
    # A module outside packages, such as a test module, may be importable only from some folders. A new process can
    # always import it by its path.
    lone = is_file and "." not in name and path.is_relative_to(Path.cwd()) and "site-packages" not in path.parts
    return _shorten_path(path) if lone or (is_file and not _is_importable(name)) else name


def _is_importable(name: str) -> bool:
    """Whether a new process with this process's search path finds the package of a module."""
    root = name.partition(".")[0]
    return any(finder.find_spec(root, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))


def _shorten_path(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
