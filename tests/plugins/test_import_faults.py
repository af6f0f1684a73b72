"""Tests of the faults that are found in the source of a plug-in, without an import."""

import sys
from pathlib import Path

import pytest

from attnbench.plugins.import_faults import find_import_fault
from attnbench.plugins.registry import PluginError, list_names, load

# Source of a plug-in that is refused, and the end of the message.
FAULTS = {
    "x = = 1\n": "SyntaxError: invalid syntax (mine.py, line 1)",
    "import no_such_package\n": "ModuleNotFoundError: No module named 'no_such_package'",
    '"""Mine."""\nimport sys, no_such_package\n': "ModuleNotFoundError: No module named 'no_such_package'",
    "import sys\nfrom no_such_package import part\n": "ModuleNotFoundError: No module named 'no_such_package'",
}


def write_modules(folder: Path, **sources: str) -> None:
    """Write a package ``plugin`` with these modules."""
    (folder / "plugin").mkdir()
    for name, source in ({"__init__": ""} | sources).items():
        (folder / "plugin" / f"{name}.py").write_text(source)


@pytest.mark.parametrize("source", FAULTS)
def test_a_fault_has_the_message_of_the_import(tmp_path: Path, source: str) -> None:
    """The fault is told in the words of the error that loading the plug-in raises."""
    path = tmp_path / "mine.py"
    path.write_text(source)
    name = f"{path}:X"
    assert find_import_fault(name) == f"cannot import {name!r}: {FAULTS[source]}"
    with pytest.raises(PluginError) as raised:
        load(name)
    assert str(raised.value).startswith(f"cannot import {name!r}: {FAULTS[source].partition(' ')[0]}")


@pytest.mark.parametrize(
    "source",
    [
        "raise SystemExit\n",
        "try:\n    import no_such_package\nexcept ImportError:\n    pass\n",
        "import sys\nsys.path.append('elsewhere')\nimport no_such_package\n",
        "from .sibling import x\nfrom __future__ import annotations\n",
    ],
)
def test_only_certain_faults_are_told(tmp_path: Path, source: str) -> None:
    """The plug-in is not run, and an import that may be right where it stands is no fault."""
    path = tmp_path / "mine.py"
    path.write_text(source)
    assert find_import_fault(f"{path}:X") is None


def test_modules_are_found_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module is found through its packages, which are checked and not imported."""
    write_modules(tmp_path, right="raise SystemExit\n", wrong="import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_import_fault("plugin.right:X") is None
    assert find_import_fault("plugin.wrong:X") == (
        "cannot import 'plugin.wrong:X': ModuleNotFoundError: No module named 'no_such_package'"
    )
    for name, missing in (("plugin.absent:X", "plugin.absent"), ("no_such_package.part:X", "no_such_package")):
        assert find_import_fault(name) == f"cannot import {name!r}: ModuleNotFoundError: No module named {missing!r}"
    (tmp_path / "plugin" / "__init__.py").write_text("import no_such_package\n")
    assert "No module named 'no_such_package'" in (find_import_fault("plugin.right:X") or "")
    assert "plugin" not in sys.modules


def test_modules_in_the_working_directory_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the working directory is found, as a worker finds it, if the directory is not on ``sys.path``."""
    (tmp_path / "lying_here.py").write_text("import lying_here_too\n")
    (tmp_path / "lying_here_too.py").write_text("")
    assert find_import_fault("lying_here:X") is not None
    monkeypatch.chdir(tmp_path)
    assert find_import_fault("lying_here:X") is None


def test_built_in_implementations_have_no_fault() -> None:
    """No registered implementation has a fault, although their optional packages may be missing."""
    assert {name: find_import_fault(name) for name in list_names()} == dict.fromkeys(list_names())


def test_an_unknown_name_is_an_error() -> None:
    """A name that is not registered raises the error of ``load``."""
    with pytest.raises(PluginError, match="unknown implementation 'sdpaa'; did you mean 'sdpa'"):
        find_import_fault("sdpaa")
