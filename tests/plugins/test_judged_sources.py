"""Tests of ``read_sources``: which files a certificate calls the code of an implementation."""

import sys
from pathlib import Path

import pytest

from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.judged_sources import read_sources

FORWARD = "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)\n"
KERNEL = f"import torch\nimport numpy\n\n\ndef attention(q, k, v, *, mask, scale):\n{FORWARD}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder on the import path, with a package of four modules, of which one imports two others."""
    package = tmp_path / "judged_package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("from . import scale\n")
    (package / "inner" / "scale.py").write_text("SCALE = 1\n")
    (package / "late.py").write_text("LATE = 1\n")
    (package / "stranger.py").write_text("")
    late = "    from judged_package.late import LATE  # noqa\n"
    (package / "kernel.py").write_text(
        KERNEL.replace(FORWARD, late + FORWARD).replace("import numpy", "import numpy\nfrom .inner import scale")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_a_package_has_the_modules_that_it_imports(folder: Path) -> None:
    """Files are the module, what it imports of its package, also inside functions, and the packages on the way."""
    name = "judged_package.kernel:attention"
    load_implementation(name)
    sources = read_sources(name)
    assert sources.files == [
        "judged_package/__init__.py",
        "judged_package/inner/__init__.py",
        "judged_package/inner/scale.py",
        "judged_package/kernel.py",
        "judged_package/late.py",
    ]
    assert (sources.folder, sources.imports) == (str(folder), ["numpy", "torch"])


@pytest.mark.parametrize("changed", ["kernel.py", "late.py", "inner/scale.py"])
def test_a_changed_module_changes_the_digest(folder: Path, changed: str) -> None:
    """The digest depends on the content of each file, and not on the modules that are not imported."""
    name = "judged_package.kernel:attention"
    load_implementation(name)
    before = read_sources(name).digest
    (folder / "judged_package" / "stranger.py").write_text("STRANGER = 1\n")
    assert read_sources(name).digest == before
    path = folder / "judged_package" / changed
    path.write_text(path.read_text() + "# changed\n")
    assert read_sources(name).digest != before


def test_a_file_has_the_modules_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an implementation in a file, modules below the folder of the file count, but no installed packages."""
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "unused.py").write_text("")
    installed = tmp_path / "venv" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "installed_there.py").write_text("")
    (tmp_path / "own.py").write_text(f"import beside\nimport installed_there\n{KERNEL}")
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"{tmp_path / 'own.py'}:attention"
    load_implementation(name)
    sources = read_sources(name)
    assert sources.files == ["beside.py", "own.py"]
    assert sources.imports == ["installed_there", "numpy", "torch"]


def test_a_built_in_implementation_has_its_own_module() -> None:
    """The sources of a registered implementation are those of its module, without attnbench."""
    load_implementation("per_head")
    files = read_sources("per_head").files
    assert "attnzoo/per_head.py" in files
    assert all(file.startswith("attnzoo/") for file in files)
