"""Tests of modules beside a named file: who finds them, what they may not replace, and which ones are shared."""

import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from attnbench.plugins.import_faults import find_import_fault
from attnbench.plugins.registry import load, write_import_lines

# Forms of import of a module beside the file; the name "late" is bound inside a call.
WAYS = (
    "import beside",
    "from . import beside",
    "import importlib\nbeside = importlib.import_module('beside')",
    "from pack import beside",
    "from bare import beside",
    "def late():\n    import beside\n    return beside.WHICH",
)


def write(folder: Path, **sources: str) -> Path:
    """Write modules into a folder, and return the folder."""
    (folder / "pack").mkdir(parents=True, exist_ok=True)
    (folder / "pack" / "__init__.py").touch()
    (folder / "bare").mkdir(exist_ok=True)  # a package without __init__.py
    for place in (folder, folder / "pack", folder / "bare"):
        (place / "beside.py").write_text(f"WHICH = {folder.name!r}\n")
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_each_file_finds_the_modules_beside_it(tmp_path: Path, way: str) -> None:
    """Files of two folders are loaded in one process, from a third folder; ``sys.path`` stays as it is."""
    folders, before = [write(tmp_path / which, mine=way) for which in ("old", "new")], list(sys.path)
    late = "def late" in way
    found = [load(f"{folder}/mine.py:{'late' if late else 'beside.WHICH'}") for folder in folders]
    assert [one() if late else one for one in found] == ["old", "new"]
    assert sys.path == before
    assert "beside" not in sys.modules
    assert find_import_fault(f"{folders[0]}/mine.py:late") is None


def test_files_replace_no_module_of_others(tmp_path: Path) -> None:
    """Files named random.py and torch.py are imported in place of no module that others use."""
    source = "import random\nimport torch\nFOUND = random, torch\n"
    folder = write(tmp_path, mine=source, random="", torch=source)
    for name in ("mine", "torch"):
        assert load(f"{folder}/{name}.py:FOUND") == (random, torch)


def test_a_module_beside_imports_the_file_itself(tmp_path: Path) -> None:
    """A module that imports the named file by its name gets the module that was loaded, not another copy."""
    folder = write(
        tmp_path, mine="X = []\ndef find():\n    import other\n    return other.X\n", other="from mine import X\n"
    )
    assert load(f"{folder}/mine.py:find")() is load(f"{folder}/mine.py:X")


def test_modules_that_the_process_finds_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the folder is on ``sys.path``, its modules are not imported a second time."""
    monkeypatch.syspath_prepend(write(tmp_path, mine="import beside\n"))
    assert load(f"{tmp_path}/mine.py:beside") is sys.modules["beside"]


def test_a_program_finds_the_modules_beside_a_file(tmp_path: Path) -> None:
    """The import lines of a program name the folder of the file, after all others."""
    write(tmp_path, mine="import beside\nimport random\n", random="raise ValueError")
    bound: dict[str, ModuleType] = {}
    exec(write_import_lines(f"{tmp_path}/mine.py:beside"), bound)
    assert tmp_path.name == bound["implementation"].WHICH
    assert sys.path[-1] == str(tmp_path)
