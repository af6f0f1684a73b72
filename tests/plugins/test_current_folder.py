"""Tests of packages in the current folder, which the installed command does not have on ``sys.path``."""

import sys
from pathlib import Path

import pytest

from attnbench.plugins.current_folder import find_top_module, is_in_current_folder
from attnbench.plugins.import_faults import find_import_fault
from attnbench.plugins.registry import PluginError, load, resolve_in_trees, write_import_lines


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``kernels`` in the current folder, beside files that are named like other modules."""
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", ".")])
    for folder in (tmp_path / "here", tmp_path / "before"):
        (folder / "kernels").mkdir(parents=True)
        (folder / "kernels" / "__init__.py").touch()
        (folder / "kernels" / "mine.py").write_text(f"import random\nX = {folder.name!r}, random.__file__\n")
        (folder / "random.py").write_text("raise ValueError")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_a_package_in_the_current_folder_is_found_after_all_others(package: Path) -> None:
    """The folder becomes the last of ``sys.path``: no module in it replaces one that is found elsewhere."""
    before = list(sys.path)
    assert find_import_fault("kernels.mine:X") is None
    assert sys.path == before
    which, other = load("kernels.mine:X")
    assert which == "here"
    assert not Path(other).is_relative_to(package)
    assert sys.path == [*before, str(package / "here")]
    load("kernels.mine:X")
    assert sys.path == [*before, str(package / "here")]


def test_a_package_in_the_current_folder_has_versions(package: Path) -> None:
    """``--base`` finds the other version of a package in the current folder."""
    names = resolve_in_trees("kernels.mine:X", package / "before")
    assert [load(name)[0] for name in names] == ["before", "here"]


def test_a_program_finds_a_package_of_the_folder_of_its_writing(package: Path) -> None:
    """The import lines of a program name the current folder if the package is only there."""
    bound: dict[str, tuple[str, str]] = {}
    exec(write_import_lines("kernels.mine:X"), bound)
    assert bound["implementation"][0] == "here"
    assert "sys.path" not in write_import_lines("math:pi")


def test_other_names_add_no_folder(package: Path) -> None:
    """A module that is found elsewhere or nowhere leaves ``sys.path`` as it is."""
    before = list(sys.path)
    load("math:pi")
    with pytest.raises(PluginError, match="No module named 'missing_package'"):
        load("missing_package:X")
    assert sys.path == before
    assert find_top_module("missing_package") is None
    assert not is_in_current_folder("random")
