"""The folder of a file that is named as an implementation: the file finds the modules beside it, as a program does.

Files of several folders may be loaded by one process, and modules beside them may have the same names. The modules of a
folder are therefore those of a source tree: imported under names of their own, and only for the code of this folder.
The standard library, the harness, installed packages, and modules that the process would find at the same place are
shared.
"""

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

from attnbench.plugins.source_tree import INSTALLED, SourceTree, find_source

__all__ = ["FileFolder"]


class FileFolder(SourceTree):
    """Import finder for the modules beside a file."""

    kind = "folder_"

    def import_file(self, path: Path) -> ModuleType:
        """Import a file of this folder, an absolute path without links, unless it is already imported.

        Raises: ImportError, and all exceptions that the file raises.
        """
        # A module beside the file that imports it by its name gets the same module.
        top = path.stem if self.has(path.stem) else "file_" + re.sub(r"\W", "_", path.stem)
        self._places[top] = path
        return importlib.import_module(f"{self.name}.{top}")

    def find_place(self, top: str) -> Path | None:
        """Return the file of a module of this folder, which a relative import finds even if the module is shared."""
        return super().find_place(top) or self._find_beside(top)

    def _locate_own(self, top: str) -> Path | None:
        source = find_source(top)
        if source is None:
            return self._find_unshared(top)
        place = self._find_beside(top)
        # A folder without __init__.py replaces no module, as elsewhere in Python.
        shared = place is None or place.is_dir() or source == place or INSTALLED & set(source.parts)
        return None if shared else place
