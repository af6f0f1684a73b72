"""Objects to names: what a fresh process has to import to get this very object."""

import inspect
import os
import sys
import sysconfig
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from attnbench.interface import Implementation
from attnbench.plugins.registry import IMPLEMENTATIONS, PluginError, known

__all__ = ["name_of", "search_path"]


def name_of(thing: object) -> str:
    """Name that leads a fresh process to an implementation: a name as it is, or the one of an object.

    Raises: PluginError, in one line that says what to do.
    """
    if isinstance(thing, str):
        known(thing)
        return thing
    module, attribute = _binding(thing)
    place = _place(module, attribute)
    registered = (entry.name for entry in entry_points(group=IMPLEMENTATIONS) if entry.value == f"{place}:{attribute}")
    return next(registered, f"{place}:{attribute}")


def search_path() -> str:
    """Value of PYTHONPATH with which a fresh process finds the modules that this one finds."""
    own = {Path(path) for path in sysconfig.get_paths().values()}
    # The standard library and site-packages are any process's own.
    others = (Path(entry).absolute() for entry in sys.path if not entry.endswith(".zip"))
    return os.pathsep.join(str(path) for path in others if not {path, path.parent} & own)


def _binding(thing: object) -> tuple[ModuleType, str]:
    """Module and attribute that hold an object."""
    if not (inspect.isclass(thing) or inspect.isfunction(thing) or isinstance(thing, Implementation)):
        raise PluginError(
            f"{type(thing).__name__} objects are no implementations: pass the class, a function of (q, k, v), an "
            "attnbench.Implementation, or the name of one"
        )
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    home = sys.modules.get(getattr(thing, "__module__", ""))
    if home is not None and getattr(home, name, None) is thing:
        return home, name
    # Instances and what a function made know no name of their own. A module is listed when its import ends, so the
    # first that holds the object defines it; but the script that is being run is listed before all.
    for module in sorted(sys.modules.values(), key=lambda module: module is sys.modules["__main__"]):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is thing:
                return module, attribute
    raise PluginError(
        f"no fresh process can import {name!r}, which no module holds: bind it to a name at the top level of a file"
    )


def _place(module: ModuleType, attribute: str) -> str:
    """Module or file that a fresh process imports to get a module."""
    name, path = module.__name__, Path(getattr(module, "__file__", None) or "-")
    is_file = path.suffix == ".py" and path.is_file()
    if name == "__main__":
        spec = getattr(module, "__spec__", None)
        if spec is not None:  # run by python -m
            return str(spec.name)
        if not is_file:
            raise PluginError(
                f"{attribute!r} was made in an interactive session, and it is checked in a process of its own: put it "
                f"in a file, say my_attention.py, and pass 'my_attention.py:{attribute}'"
            )
        return _from_here(path)
    # A path says more than the name of a module that is found only from some folders, such as a test's.
    lone = is_file and "." not in name and path.is_relative_to(Path.cwd()) and "site-packages" not in path.parts
    return _from_here(path) if lone or (is_file and not _found(name)) else name


def _found(name: str) -> bool:
    """Whether a fresh process with this one's search path finds the package of a module."""
    root = name.partition(".")[0]
    return any(finder.find_spec(root, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))


def _from_here(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
