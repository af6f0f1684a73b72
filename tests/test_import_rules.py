"""Tests of the import rules, which name packages, so that modules that are added later obey the rules too."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "harness" / "attnbench"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
# Modules of attnbench that an implementation may import.
PLUGIN_CONTRACT = {"argument_checks", "cases", "interface", "kernel", "masks", "refusals"}
# Largest number of files and folders in the folder attnbench.
MOST_ENTRIES = 30


def find_contract(words: str) -> dict[str, Any]:
    """Return the contract of import-linter whose name begins with these words."""
    (found,) = (one for one in CONTRACTS if one["name"].startswith(words))
    return dict(found)


def list_parts() -> set[str]:
    """List the packages and modules in the folder attnbench."""
    return {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()} - {
        "__init__"
    }


def test_the_listing_of_the_folder_is_short() -> None:
    """The folder attnbench has at most 30 entries, ``__init__.py`` and ``py.typed`` included."""
    assert len([path for path in PACKAGE.iterdir() if path.name != "__pycache__"]) <= MOST_ENTRIES


def test_every_part_has_a_layer() -> None:
    """The contract of layers lists every package and module: one that is not listed could import anything."""
    layers = find_contract("A layer may import")
    assert {name.strip() for layer in layers["layers"] for name in layer.split("|")} == list_parts()
    assert layers["exhaustive"] is True


def test_implementations_may_import_only_the_plugin_contract() -> None:
    """All packages and modules of attnbench outside the plug-in contract are forbidden for implementations."""
    forbidden = find_contract("Implementations use the plug-in contract only")["forbidden_modules"]
    ours = {name.removeprefix("attnbench.") for name in forbidden if name.startswith("attnbench.")}
    assert ours == list_parts() - PLUGIN_CONTRACT


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Report of import-linter on a source tree with a new oracle module, a new package, and forbidden imports."""
    folder = tmp_path_factory.mktemp("tree")
    for source in ("harness", "implementations"):
        shutil.copytree(ROOT / source, folder / source, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "harness/attnbench/oracle/brand_new.py").write_text("import attnsweep\n")
    (folder / "harness/attncheats/brand_new.py").write_text("import attnstudies.section\n")
    (folder / "harness/attnbench/fresh").mkdir()
    (folder / "harness/attnbench/fresh/__init__.py").write_text('"""New."""\n')
    (folder / "implementations/attnzoo/brand_new.py").write_text("import attnbench.oracle.brand_new\n")
    (folder / "implementations/attnmechanisms/checks/brand_new.py").write_text("import attnmechanisms.modules.loops\n")
    path = os.pathsep.join(str(folder / source) for source in ("harness", "implementations"))
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=folder, env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.parametrize(
    "line",
    [
        "attnzoo is not allowed to import attnbench.oracle: - attnzoo.brand_new -> attnbench.oracle.brand_new",
        "attnbench is not allowed to import attnsweep: - attnbench.oracle.brand_new -> attnsweep",
        "attncheats is not allowed to import attnstudies: - attncheats.brand_new -> attnstudies.section",
        "attnmechanisms.checks is not allowed to import attnmechanisms.modules: - attnmechanisms.checks.brand_new",
    ],
)
def test_a_new_module_is_under_the_rules_of_its_package(report: str, line: str) -> None:
    """A forbidden import of a new module is reported, although no list names the module."""
    assert line in report


def test_a_new_package_needs_a_layer(report: str) -> None:
    """A new package breaks the import rules until a layer lists this package."""
    assert "The following modules are not listed as layers: - attnbench.fresh" in report
