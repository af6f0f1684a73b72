"""The source files that a conformance result is about: an implementation's module, and its own modules.

An implementation's own modules are the modules of the same top-level package. If the implementation is named by a file,
its own modules are the modules below the folder of the file. Installed packages and attnbench itself are not own
modules: a certificate has their versions. An own module counts if another one has an import statement for it, also
inside a function. The list of modules that a process has imported is not used, because it depends on which other
implementations the process has loaded.
"""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from attnbench.plugins.registry import locate
from attnbench.plugins.source_tree import INSTALLED, SourceTree
from attnbench.processes.sources import Sources

__all__ = ["read_sources"]

# Folder of attnbench, whose modules are never an implementation's own.
HARNESS_FOLDER = Path(__file__).parents[1]
# Ends of the names of files that Python imports: source code and compiled extensions.
SUFFIXES = (".py", *EXTENSION_SUFFIXES)


def read_sources(name: str) -> Sources:
    """Read the source files of an implementation that this process has loaded by this name."""
    start = _find_file(name)
    if start is None:
        return Sources()
    collected = _Collected(place=_find_place(name, start), parent=_find_parent(name, start))
    collected.add(start)
    digest, names = hashlib.sha256(), []
    for path in sorted(collected.files):
        names.append(path.relative_to(collected.parent).as_posix())
        content = path.read_bytes()
        digest.update(f"{names[-1]}\n{len(content)}\n".encode() + content)
    return Sources(
        folder=str(collected.parent), files=names, digest=digest.hexdigest(), imports=sorted(collected.imports)
    )


def _find_file(name: str) -> Path | None:
    """Return the file of the module in which a name is looked up, or None if the module has no file."""
    place, _, tree = locate(name)
    if tree:
        return SourceTree.open(Path(tree)).find_counterpart(place)
    file = place if place.endswith(".py") else getattr(sys.modules.get(place), "__file__", None)
    return Path(file).resolve() if file else None


def _find_parent(name: str, start: Path) -> Path:
    """Return the folder that contains the top-level package or the file to which a name refers."""
    place, _, tree = locate(name)
    if place.endswith(".py") or tree:
        return start.parent
    depth = place.count(".") + (start.name == "__init__.py")
    return start.parents[depth]


def _find_place(name: str, start: Path) -> Path:
    """Return the folder or file in which an implementation's own modules are."""
    place, _, tree = locate(name)
    if place.endswith(".py") or tree:
        return start.parent
    package = _find_parent(name, start) / place.partition(".")[0]
    return package if package.is_dir() else start


@dataclass(slots=True)
class _Collected:
    """The own files found so far, and the names of the other modules that they import."""

    # Folder of the own modules, or the only own file.
    place: Path
    # Folder in which the absolute import of an own module finds the module.
    parent: Path
    files: set[Path] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)

    def add(self, path: Path) -> None:
        """Add an own file, and the own files that it imports; if the file is not an own file, do nothing."""
        waiting = [path]
        while waiting:
            one = waiting.pop()
            if one in self.files or not self._is_own(one):
                continue
            self.files.add(one)
            if one.suffix == ".py":
                waiting += self._follow_imports(one)

    def _is_own(self, path: Path) -> bool:
        if not path.is_relative_to(self.place) or path.is_relative_to(HARNESS_FOLDER) or not path.is_file():
            return False
        return not INSTALLED.intersection(path.relative_to(self.place).parts)

    def _follow_imports(self, path: Path) -> list[Path]:
        """Return the files that the import statements of a file may name; add other modules to ``imports``."""
        found: list[Path] = []
        for base, dotted in _list_imports(path, self.parent):
            places = list(_list_places(base, dotted))
            found += places
            top = dotted.partition(".")[0]
            if base == self.parent and not any(map(self._is_own, places)):
                self.imports.add(top)
        self.imports -= sys.stdlib_module_names
        return found


def _list_imports(path: Path, parent: Path) -> Iterator[tuple[Path, str]]:
    """Yield the imports of a file: the folder to which a name is relative, and the dotted name.

    The dotted name of ``from NAME import WORD`` is ``NAME.WORD``, because ``WORD`` may be a module.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((parent, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if node.level else parent
            yield from ((base, ".".join(filter(None, (node.module, alias.name)))) for alias in node.names)


def _list_places(base: Path, dotted: str) -> Iterable[Path]:
    """Yield the files that the import of a dotted name may execute: the packages on the way, and the module."""
    folder = base
    yield base / "__init__.py"
    for part in dotted.split("."):
        yield from (folder / f"{part}{suffix}" for suffix in SUFFIXES)
        folder = folder / part
        yield folder / "__init__.py"
