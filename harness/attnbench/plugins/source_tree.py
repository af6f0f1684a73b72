"""Another source tree: its code is imported beside the code of the same names that is installed, in one process.

Modules of a tree bear names of their own, and what their code imports, whenever it does, comes from the tree too where
the tree has it. Shared with everybody is what is no part of the tree: the standard library, whatever lies in
site-packages (torch can be loaded only once), and the harness, which is the measure of both.
"""

import builtins
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["SourceTree", "home", "source_tree"]

# Never taken from a tree: who measures, and the program that is being run.
HARNESS = frozenset({"attnbench", "__main__"})
# Folders of installed distributions, whose code is no part of any tree.
INSTALLED = frozenset({"site-packages", "dist-packages"})
# How the names of all trees begin.
PREFIX = "attnbench_tree_"


def source_tree(path: Path) -> "SourceTree":
    """The tree at a folder; there is one of each in a process."""
    folder = path.resolve()
    trees = [finder for finder in sys.meta_path if isinstance(finder, SourceTree)]
    found = next((tree for tree in trees if tree.folder == folder), None)
    if found is None:
        found = SourceTree(folder)
        sys.meta_path.insert(0, found)
        sys.modules[found.name] = found.root
    if not trees:
        builtins.__import__ = _redirected(builtins.__import__)
    return found


def home(place: str, tree: Path) -> Path | None:
    """Folder that holds an installed module, or a file, just as a tree holds its counterpart; None where it has none.

    ``place`` is the name of a module or the path of a file.
    """
    folder = tree.resolve()
    own, other = _source(place), SourceTree(folder).counterpart(place)
    if own is None or other is None:
        return None
    end = other.relative_to(folder).parts
    if own.parts[-len(end) :] != end:  # the tree has it below src
        end = end[1:]
    return own.parents[len(end) - 1]


class SourceTree(MetaPathFinder):
    """Finds the modules of one tree, under names that begin with the tree's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = _Root(PREFIX + re.sub(r"\W", "_", str(folder)), self)
        self.name = self.root.__name__
        # Where the tree has a module that stands in no package, by its name; None: it is not of the tree.
        self._places: dict[str, Path | None] = {}

    def module(self, name: str) -> ModuleType:
        """The tree's module of this name.

        Raises: ImportError, and whatever the module raises.
        """
        top = name.partition(".")[0]
        if top in HARNESS:
            raise ImportError(f"{top} measures both sides, and is not taken from {self.folder}")
        place = self.counterpart(name)
        if place is None:
            raise ImportError(f"no {top} below {self.folder}")
        # Asked for by name, it is of the tree even where its counterpart lies in site-packages.
        self._places[top] = place
        return importlib.import_module(f"{self.name}.{name}")

    def file(self, path: Path) -> ModuleType:
        """Module of the tree's file that corresponds to a file elsewhere, imported once.

        Raises: ImportError, and whatever the file raises.
        """
        place = self.counterpart(str(path))
        if place is None:
            raise ImportError(f"no {_relative(path)} below {self.folder}")
        top = "file_" + re.sub(r"\W", "_", str(place.relative_to(self.folder)))
        self._places[top] = place
        return importlib.import_module(f"{self.name}.{top}")

    def counterpart(self, place: str) -> Path | None:
        """File of this tree that corresponds to an installed module's top package, or to a file elsewhere.

        It is the one that most of the path agrees with: of implementations/attnzoo/__init__.py before
        attnzoo/__init__.py. A file below the present folder needs its whole name from there.
        """
        source = _source(place)
        if source is None:
            return None
        fewest = len(_relative(source).parts) if place.endswith(".py") else 1 + (source.name == "__init__.py")
        ends = [source.parts[begin:] for begin in range(1, len(source.parts) - fewest + 1)]
        places = (root.joinpath(*end) for end in ends for root in (self.folder, self.folder / "src"))
        return next((found for found in places if found.exists()), None)

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Spec of a module that stands in no package of the tree; the others are found where their package lies."""
        own, _, top = name.partition(".")
        place = self._place(top) if own == self.name and top and "." not in top else None
        if place is None:
            return None
        if place.is_dir():  # a package without a file of its own
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        locations = [str(place.parent)] if place.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, place, submodule_search_locations=locations)

    def _place(self, top: str) -> Path | None:
        """Where the tree has a module that its code imports, or None where that is everybody's."""
        if top not in self._places:
            self._places[top] = None if top in HARNESS | sys.stdlib_module_names else self._own(top)
        return self._places[top]

    def _own(self, top: str) -> Path | None:
        source = _source(top)
        if source is None:  # only the tree has it
            places = (self.folder / name for name in (f"{top}.py", f"{top}/__init__.py"))
            return next((place for place in places if place.is_file()), None)
        return None if INSTALLED & set(source.parts) else self.counterpart(top)

    def imported(self, name: str, package: str | None = None) -> ModuleType:
        """What ``importlib.import_module`` returns in the tree's code."""
        if name.startswith(".") or not self.has(name):
            return importlib.import_module(name, package)
        return importlib.import_module(f"{self.name}.{name}")

    def has(self, name: str) -> bool:
        """Whether a module that the tree's code imports is the tree's."""
        return self._place(name.partition(".")[0]) is not None


class _Root(ModuleType):
    """The package that all modules of a tree stand in."""

    def __init__(self, name: str, tree: SourceTree) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.tree = tree
        self.importlib = _Importlib(tree)


class _Importlib(ModuleType):
    """``importlib`` as a tree's code sees it."""

    def __init__(self, tree: SourceTree) -> None:
        super().__init__("importlib")
        self.import_module = tree.imported

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib, name)


def _redirected(everybodys: Callable[..., ModuleType]) -> Callable[..., ModuleType]:
    """An ``__import__`` that is everybody's, and leads the code of trees to their own modules.

    It is the process's, because torch's compiler calls it for the code that it traces.
    """

    def imports(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002  # the parameters of __import__
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        scope = sys._getframe(1).f_globals if globals is None else globals  # noqa: SLF001  # called by name
        importer = scope.get("__name__") or ""
        if level or not importer.startswith(PREFIX):
            return everybodys(name, globals, locals, fromlist or (), level)
        root: _Root = sys.modules[importer.partition(".")[0]]  # type: ignore[assignment]
        if not root.tree.has(name):
            found = everybodys(name, globals, locals, fromlist or (), level)
            return root.importlib if found is importlib else found
        found = importlib.import_module(f"{root.tree.name}.{name}")
        if fromlist:
            return everybodys(found.__name__, globals, locals, fromlist, 0)
        return sys.modules[f"{root.tree.name}.{name.partition('.')[0]}"]

    return imports


def _source(place: str) -> Path | None:
    """File of a module's top package as it is installed, or a file itself; nothing is imported."""
    if place.endswith(".py"):
        return Path(place).resolve()
    try:
        spec = importlib.util.find_spec(place.partition(".")[0])
    except ValueError:  # it is there without a spec
        return None
    if spec is None:
        return None
    if spec.has_location and spec.origin is not None:
        return Path(spec.origin).resolve()
    return Path(next(iter(spec.submodule_search_locations))).resolve() if spec.submodule_search_locations else None


def _relative(path: Path) -> Path:
    """Path as it is told from the present folder, or the name alone where it lies elsewhere."""
    full, here = path.resolve(), Path.cwd()
    return full.relative_to(here) if full.is_relative_to(here) else Path(full.name)
