"""Source trees: two versions of the same modules in one process, the installed version and the version in a folder.

The modules of a source tree are imported under names that begin with the name of the tree. An import in the code of a
tree loads the module from the tree if the tree has this module, even if the import runs inside a later call. All code
of the process shares the standard library, site-packages and the harness, because torch (in site-packages) can be
loaded only once, and the harness measures both versions.
"""

import builtins
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from attnbench.plugins.current_folder import find_top_module

__all__ = ["INSTALLED", "SourceTree", "find_counterpart_root", "find_source"]

# Modules that are never imported from a tree: the harness, and the main program.
HARNESS = frozenset({"attnbench", "__main__"})
# Folders of installed distributions, whose code is not part of any tree.
INSTALLED = frozenset({"site-packages", "dist-packages"})
# Prefix of the names of all trees and of their modules.
PREFIX = "attnbench_tree_"


def find_counterpart_root(place: str, tree: Path) -> Path | None:
    """Return the folder of the installed version that corresponds to the folder ``tree``.

    ``place`` is the name of an installed module or the path of a file. Its counterpart is the version of this module or
    file in ``tree``. The path of the module or file relative to the returned folder equals the path of the counterpart
    relative to ``tree``, apart from a leading ``src``. The result is None if there is no counterpart.
    """
    folder = tree.resolve()
    source, counterpart = find_source(place), SourceTree(folder).find_counterpart(place)
    if source is None or counterpart is None:
        return None
    end = counterpart.relative_to(folder).parts
    if source.parts[-len(end) :] != end:  # src is only in the path of the counterpart
        end = end[1:]
    return source.parents[len(end) - 1]


class SourceTree(MetaPathFinder):
    """Import finder for the modules of one tree; every module name begins with the name of the tree."""

    # Second part of the names of the trees of a class.
    kind = ""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return the tree of a folder; a process creates each tree only once."""
        folder = path.resolve()
        trees = [finder for finder in sys.meta_path if isinstance(finder, SourceTree)]
        found = next((tree for tree in trees if type(tree) is cls and tree.folder == folder), None)
        if found is None:
            found = cls(folder)
            sys.meta_path.insert(0, found)
            sys.modules[found.name] = found.root
        if not trees:
            builtins.__import__ = _redirect_import(builtins.__import__)
        return found

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = _Root(PREFIX + self.kind + re.sub(r"\W", "_", str(folder)), self)
        self.name = self.root.__name__
        # For each name of a top-level module, the path of the module's file in the tree. The path is None if the module
        # is not imported from the tree.
        self._places: dict[str, Path | None] = {}
        # The folders in which modules are found that this process cannot import: those of imported files come first.
        self._folders = [folder]
        # Top-level modules that only trees have.
        self._unshared: set[str] = set()

    def import_module(self, name: str) -> ModuleType:
        """Import the module of this name from the tree.

        Raises: ImportError, and all exceptions that the module raises.
        """
        top = name.partition(".")[0]
        if top in HARNESS:
            raise ImportError(f"{top} is shared by the compared versions and cannot be imported from {self.folder}")
        place = self.find_counterpart(name)
        if place is None:
            raise ImportError(f"no {top} below {self.folder}")
        # A module that a user names is imported from the tree, even if its installed version is in site-packages.
        self._places[top] = place
        return importlib.import_module(f"{self.name}.{name}")

    def import_file(self, path: Path) -> ModuleType:
        """Import the tree's counterpart of a file outside the tree, unless it is already imported.

        Raises: ImportError, and all exceptions that the file raises.
        """
        place = self.find_counterpart(str(path))
        if place is None:
            raise ImportError(f"no {_shorten_path(path)} below {self.folder}")
        top = "file_" + re.sub(r"\W", "_", str(place.relative_to(self.folder)))
        self._places[top] = place
        if place.parent not in self._folders:
            self._folders.insert(0, place.parent)
        return importlib.import_module(f"{self.name}.{top}")

    def find_counterpart(self, place: str) -> Path | None:
        """Return the file of this tree that corresponds to an installed module, or to a file outside the tree.

        Of a module, only the top package is looked up. The result is None if the tree has no counterpart.

        The counterpart is the file of this tree whose path shares the most trailing parts with the path of the module
        or file. The counterpart of old/implementations/attnzoo/__init__.py is implementations/attnzoo/__init__.py. If
        the tree lacks that file, the counterpart is attnzoo/__init__.py. For a file below the current directory, the
        whole path relative to this directory must agree with the end of the counterpart's path. A module that this
        process cannot import is looked for in the tree, and in its folder ``src``.
        """
        source = find_source(place)
        if source is None:
            return _get_place(
                PathFinder.find_spec(place.partition(".")[0], [str(self.folder), str(self.folder / "src")])
            )
        fewest = len(_shorten_path(source).parts) if place.endswith(".py") else 1 + (source.name == "__init__.py")
        ends = [source.parts[begin:] for begin in range(1, len(source.parts) - fewest + 1)]
        places = (root.joinpath(*end) for end in ends for root in (self.folder, self.folder / "src"))
        return next((found for found in places if found.exists()), None)

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a top-level module of the tree; submodules are found through their package's path."""
        own, _, top = name.partition(".")
        place = self.find_place(top) if own == self.name and top and "." not in top else None
        if place is None:
            return None
        if place.is_dir():  # a namespace package
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        locations = [str(place.parent)] if place.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, place, submodule_search_locations=locations)

    def find_place(self, top: str) -> Path | None:
        """Return the file of a module of the tree by its name in the tree."""
        return self._locate(top)

    def publish(self, name: str) -> None:
        """Let other code find a module of this tree by its name alone, if only trees have a module of this name."""
        top = name.partition(".")[0]
        if top in self._unshared:
            sys.modules |= {one: sys.modules[f"{self.name}.{one}"] for one in (top, name)}

    def _locate(self, top: str) -> Path | None:
        """Return the file from which the tree's code imports the top-level module ``top``.

        The result is None if ``top`` is not imported from the tree, but shared with the rest of the process.
        """
        if top not in self._places:
            self._places[top] = None if top in HARNESS | sys.stdlib_module_names else self._locate_own(top)
        return self._places[top]

    def _locate_own(self, top: str) -> Path | None:
        source = find_source(top)
        if source is None:  # this process cannot import the module: look in the tree only
            return self._find_unshared(top)
        return None if INSTALLED & set(source.parts) else self.find_counterpart(top)

    def _find_unshared(self, top: str) -> Path | None:
        self._unshared.add(top)
        return self._find_beside(top)

    def _find_beside(self, top: str) -> Path | None:
        return _get_place(PathFinder.find_spec(top, list(map(str, self._folders))))

    def import_for_tree(self, name: str, package: str | None = None) -> ModuleType:
        """Import a module for the code of the tree, which calls this method as ``importlib.import_module``."""
        if name.startswith(".") or not self.has(name):
            return importlib.import_module(name, package)
        return importlib.import_module(f"{self.name}.{name}")

    def has(self, name: str) -> bool:
        """Whether an import of the module ``name`` by the tree's code loads the module from the tree."""
        return self._locate(name.partition(".")[0]) is not None


class _Root(ModuleType):
    """The package that contains all modules of a tree."""

    def __init__(self, name: str, tree: SourceTree) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.tree = tree
        self.importlib = _Importlib(tree)


class _Importlib(ModuleType):
    """The module that the code of a tree gets when it imports ``importlib``."""

    def __init__(self, tree: SourceTree) -> None:
        super().__init__("importlib")
        self.import_module = tree.import_for_tree

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib, name)


def _redirect_import(original: Callable[..., ModuleType]) -> Callable[..., ModuleType]:
    """Return an ``__import__`` that loads a tree's modules for the tree's code, and calls ``original`` for other code.

    The result must replace ``builtins.__import__``, because torch's compiler calls that function for imports in the
    code that it traces.
    """

    def import_redirected(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002  # the parameters of __import__
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        caller = sys._getframe(1).f_globals  # noqa: SLF001  # the code that calls this function directly
        scope = caller if globals is None else globals
        importer = scope.get("__name__") or ""
        if level or not importer.startswith(PREFIX):
            return original(name, globals, locals, fromlist or (), level)
        root: _Root = sys.modules[importer.partition(".")[0]]  # type: ignore[assignment]
        if not root.tree.has(name):
            _withdraw(name.partition(".")[0])
            found = original(name, globals, locals, fromlist or (), level)
            return root.importlib if found is importlib else found
        found = importlib.import_module(f"{root.tree.name}.{name}")
        if caller is not scope:  # torch's compiler, which then imports by the name alone what the code imports
            root.tree.publish(name)
        if fromlist:
            return original(found.__name__, globals, locals, fromlist, 0)
        return sys.modules[f"{root.tree.name}.{name.partition('.')[0]}"]

    return import_redirected


def _withdraw(top: str) -> None:
    """Remove a top-level module from ``sys.modules`` if a tree has published it: no other tree may find it there."""
    if _is_published(top):
        for name in [one for one in sys.modules if one.partition(".")[0] == top]:
            del sys.modules[name]


def _is_published(top: str) -> bool:
    """Whether a top-level module in ``sys.modules`` is that of a tree."""
    return str(getattr(sys.modules.get(top), "__name__", "")).startswith(PREFIX)


def find_source(place: str) -> Path | None:
    """Return the installed file of the top package of the module ``place``; nothing is imported.

    If ``place`` is the path of a file, return its absolute path. The result is None if no file is found, or if only
    source trees have the module.
    """
    if place.endswith(".py"):
        return Path(place).resolve()
    top = place.partition(".")[0]
    if _is_published(top):
        return None
    try:
        spec = find_top_module(top)
    except ValueError:  # the module was loaded without a spec
        return None
    return _get_place(spec)


def _get_place(spec: ModuleSpec | None) -> Path | None:
    """Return the file of a module, or the folder of a package that has no file."""
    if spec is None:
        return None
    if spec.has_location and spec.origin is not None:
        return Path(spec.origin).resolve()
    return Path(next(iter(spec.submodule_search_locations))).resolve() if spec.submodule_search_locations else None


def _shorten_path(path: Path) -> Path:
    """Return a path relative to the current directory; of a path outside this directory, return only the last part."""
    full, here = path.resolve(), Path.cwd()
    return full.relative_to(here) if full.is_relative_to(here) else Path(full.name)
