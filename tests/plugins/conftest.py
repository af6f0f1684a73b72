"""What tests of imports share: the import system is as before after each test."""

import builtins
import sys
from collections.abc import Iterator

import pytest

# Prefixes of the names of the modules that the tests create.
OWN = ("attnbench_tree_", "kernels", "beside", "loose", "removed", "factor")


@pytest.fixture(autouse=True)
def _restore_imports() -> Iterator[None]:
    """After a test, restore the import system and remove the modules whose names begin with an entry of OWN.

    Other modules stay imported, because torch's modules cannot be imported twice.
    """
    finders, imports, folders = list(sys.meta_path), builtins.__import__, list(sys.path)
    yield
    builtins.__import__ = imports
    sys.meta_path[:], sys.path[:] = finders, folders
    for name in [name for name in sys.modules if name.startswith(OWN)]:
        del sys.modules[name]
