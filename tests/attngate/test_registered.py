"""Tests of the implementations that a project registers, and of those that only one of its sides registers."""

from pathlib import Path

import pytest

from attnbench.api.revisions import Version
from attngate.errors import GateError
from attngate.registered import compare_registered, read_registered

BASE = Version(name="main", commit="1" * 40, tree="2" * 40)


def register(folder: Path, **places: str) -> Path:
    """Write a project that registers implementations, and return its folder."""
    folder.mkdir(exist_ok=True)
    lines = ['[project.entry-points."attnbench.implementations"]', *(f'{name} = "{places[name]}"' for name in places)]
    (folder / "pyproject.toml").write_text("\n".join(lines))
    return folder


def test_the_project_names_its_implementations(tmp_path: Path) -> None:
    """A name that is installed, else its place."""
    register(tmp_path, mine="mine:Attend", sdpa="attnzoo.sdpa:SDPA")
    assert read_registered(tmp_path) == {"mine": "mine:Attend", "sdpa": "sdpa"}
    (tmp_path / "pyproject.toml").write_text("[project")
    with pytest.raises(GateError, match=r"pyproject.toml cannot be read: .*; name an IMPLEMENTATION"):
        read_registered(tmp_path)


def test_what_one_side_alone_registers_is_added_or_removed(tmp_path: Path) -> None:
    """A base that registers nothing may have all; one that registers others has nothing to compare."""
    new = read_registered(register(tmp_path / "new", mine="mine:Attend", other="mine:attend"))
    assert compare_registered(new, register(tmp_path / "before", mine="mine:Attend", gone="mine:gone"), BASE) == (
        ("mine:attend",), ("mine:gone",)
    )  # fmt: skip
    assert compare_registered(new, tmp_path, BASE) == ((), ())
    message = (
        r"^--base: pyproject.toml of main \(1{7,12}\) registers none of mine:Attend, mine:attend, so there is nothing"
    )
    with pytest.raises(GateError, match=message):
        compare_registered(new, register(tmp_path / "others", gone="mine:gone"), BASE)
