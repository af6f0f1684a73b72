"""Tests of source trees: two versions of the same code are loaded in one process and never mixed."""

import importlib
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from attnbench.plugins.registry import PluginError, check_name, describe_origin, display_name, load, resolve_in_trees
from attnbench.plugins.source_tree import SourceTree

# Ways in which a module of the package ``kernels`` imports a function of another module. The other module is in the
# package too, except in "beside it": the file ``beside.py`` lies beside the folder of the package.
WAYS = {
    "absolute": "from kernels.inner import which",
    "relative": "from .inner import which",
    "whole": "import kernels.inner\nwhich = kernels.inner.which",
    "renamed": "import kernels.inner as other\nwhich = other.which",
    "module": "from kernels import inner\nwhich = inner.which",
    "in a call": "def which():\n    from kernels.inner import which\n    return which()",
    "by name": "import importlib\n\ndef which():\n    return importlib.import_module('kernels.inner').which()",
    "by a function": (
        "from importlib import import_module\n\ndef which():\n    return import_module('.inner', __package__).which()"
    ),
    "by the function": "def which():\n    return __import__('kernels.inner').inner.which()",
    "beside it": "def which():\n    import beside\n    return beside.which()",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write files into a folder, and return the folder."""
    for name, source in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder


@pytest.fixture
def trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two source trees: "new", which is the working directory and on ``sys.path``, and "old".

    The function ``which`` of each tree returns the tree's name.
    """
    for which in ("new", "old"):
        source = f"def which():\n    return {which!r}\n"
        ways = {f"kernels/way_{number}.py": way for number, way in enumerate(WAYS.values())}
        write(tmp_path / which, {"kernels/__init__.py": "", "kernels/inner.py": source, "beside.py": source} | ways)
    monkeypatch.chdir(tmp_path / "new")
    monkeypatch.syspath_prepend(tmp_path / "new")
    return tmp_path / "new", tmp_path / "old"


@pytest.mark.parametrize(("number", "way"), list(enumerate(WAYS)))
def test_a_tree_imports_its_own_modules(trees: tuple[Path, Path], number: int, way: str) -> None:
    """Code of a tree imports the tree's own modules, whichever form the import has, also inside a call.

    A name without a tree is still imported from ``sys.path``.
    """
    new, old = trees
    name = f"kernels.way_{number}:which"
    first, second = resolve_in_trees(name, old)
    assert (first, second) == (f"{name} @ {old}", f"{name} @ {new}")
    loaded = [load(first), load(second), load(name)]
    assert [which() for which in loaded] == ["old", "new", "new"]
    assert [which() for which in reversed(loaded)] == ["new", "new", "old"]


def test_a_file_is_found_by_its_relative_path_in_another_tree(trees: tuple[Path, Path]) -> None:
    """A file's path relative to the working directory names the file in the other tree.

    The file in the other tree imports modules of that tree.
    """
    new, old = trees
    for folder in trees:
        write(
            folder, {"some/mine.py": "import beside\nfrom kernels.way_5 import which\nNAMES = beside.which(), which()"}
        )
    first, second = resolve_in_trees("some/mine.py:NAMES", old)
    assert (load(first), load(second)) == (("old", "old"), ("new", "new"))
    assert load(first) is load(first)
    assert (display_name(first), display_name(second)) == ("some/mine.py:NAMES @ old", "some/mine.py:NAMES @ .")
    assert resolve_in_trees(f"{new}/some/mine.py:NAMES", old)[0].endswith(f" @ {old}")
    (old / "some/mine.py").rename(old / "mine.py")
    with pytest.raises(PluginError) as raised:
        resolve_in_trees("some/mine.py:NAMES", old)
    assert str(raised.value) == (
        f"--base: {old} has no some/mine.py, the source of 'some/mine.py:NAMES'; name a folder that contains another "
        "version of it"
    )


def test_a_file_finds_the_modules_beside_it_in_each_tree(trees: tuple[Path, Path]) -> None:
    """A file in a folder below a tree imports the modules of this folder, which no folder on ``sys.path`` has."""
    new, old = trees
    for tree in trees:
        write(tree / "deep", {"mine.py": "import loose\n", "loose.py": f"WHICH = {tree.name!r}\n"})
    names = resolve_in_trees("deep/mine.py:loose.WHICH", old)
    assert names == (f"deep/mine.py:loose.WHICH @ {old}", f"deep/mine.py:loose.WHICH @ {new}")
    assert [load(name) for name in names] == ["old", "new"]


def test_a_file_that_failed_is_run_again(trees: tuple[Path, Path]) -> None:
    """A file of a tree that raised on import is run again, with its new content, when it is loaded again."""
    for folder in trees:
        write(folder, {"mine.py": "A = 1\nraise ValueError('no')"})
    first, _ = resolve_in_trees("mine.py:A", trees[1])
    with pytest.raises(PluginError, match="ValueError: no"):
        load(first)
    write(trees[1], {"mine.py": "A = 25"})
    assert load(first) == 25


def test_modules_outside_the_tree_are_shared(trees: tuple[Path, Path]) -> None:
    """A tree's own ``json``, ``msgspec`` or ``attnbench`` is never imported.

    Trees share the standard library, site-packages and the harness.
    """
    same_names = {"json/__init__.py": "X = 1", "msgspec/__init__.py": "X = 1", "attnbench/__init__.py": "X = 1"}
    imports = "import json, msgspec, attnbench.interface\nfrom importlib import util\n"
    source = imports + "FOUND = json, msgspec, attnbench, util"
    for folder in trees:
        write(folder, same_names | {"kernels/imports.py": source})
    for name in resolve_in_trees("kernels.imports:FOUND", trees[1]):
        assert load(name) == (sys.modules["json"], msgspec, sys.modules["attnbench"], importlib.util)
    with pytest.raises(PluginError, match="attnbench is shared by the compared versions and cannot be imported from"):
        load(f"attnbench.mutants.multihead:MUTANTS @ {trees[1]}")


def test_a_tree_may_have_a_module_of_its_own(trees: tuple[Path, Path]) -> None:
    """A module that only the old tree has can be imported by code of the old tree, and by no other code."""
    write(trees[1], {"removed.py": "X = 'old'", "kernels/way_0.py": "from removed import X as which"})
    first, second = resolve_in_trees("kernels.way_0:which", trees[1])
    assert load(first) == "old"
    assert load(second)() == "new"
    assert "removed" not in sys.modules


def test_a_package_is_found_by_the_longest_common_end_of_its_path(trees: tuple[Path, Path], tmp_path: Path) -> None:
    """``new/kernels`` is found in another checkout as ``new/kernels``, ``kernels`` or ``src/kernels``.

    If several of these exist, the first is taken, because it has the most path components in common.
    """
    for number, place in enumerate(("new/kernels", "kernels", "src/kernels")):
        folder = write(tmp_path / f"checkout{number}", {f"{place}/__init__.py": f"X = {number}"})
        write(trees[0], {"kernels/__init__.py": "X = 'new'"})
        assert load(resolve_in_trees("kernels:X", folder)[0]) == number
    both = write(tmp_path / "both", {"new/kernels/__init__.py": "X = 'nearer'", "kernels/__init__.py": "X = 'farther'"})
    first, second = resolve_in_trees("kernels:X", both)
    assert (load(first), load(second)) == ("nearer", "new")
    assert second == f"kernels:X @ {tmp_path}"


def test_a_namespace_package_is_found(trees: tuple[Path, Path]) -> None:
    """A folder of modules without ``__init__.py`` is loaded from both trees as a package."""
    for folder in trees:
        write(folder, {"loose/part.py": f"X = {folder.name!r}"})
    assert [load(name) for name in resolve_in_trees("loose.part:X", trees[1])] == ["old", "new"]


def test_a_registered_name_is_loaded_from_a_tree(trees: tuple[Path, Path], tmp_path: Path) -> None:
    """A registered name (sdpa) is loaded from the tree's version of its module (attnzoo.sdpa)."""
    write(tmp_path / "old", {"attnzoo/__init__.py": "", "attnzoo/sdpa.py": "SDPA = 'old'"})
    first, second = resolve_in_trees("sdpa", tmp_path / "old")
    assert load(first) == "old"
    assert type(load(second)) is type(load("sdpa"))
    assert load(second) is not load("sdpa")
    assert (display_name(first), describe_origin(first)) == ("sdpa @ old", first)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "kernels.way_0:which",
            "--base: 'kernels.way_0:which' is already imported from {new}; "
            "name a folder that contains another version of it",
        ),
        (
            "sdpa",
            "--base: {new} has no attnzoo, the source of 'sdpa'; name a folder that contains another version of it",
        ),
        ("sdpa @ {new}", "'sdpa @ {new}' already names a source tree; leave out --base"),
    ],
)
def test_a_name_that_cannot_be_compared_is_an_error(trees: tuple[Path, Path], name: str, message: str) -> None:
    """The message is one line with the problem and the remedy."""
    with pytest.raises(PluginError) as raised:
        resolve_in_trees(name.format(new=trees[0]), trees[0])
    assert str(raised.value) == message.format(new=trees[0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kernels.gone:X @ {old}", "cannot import 'kernels.gone:X @ {old}': ModuleNotFoundError: No module named "),
        ("nowhere:X @ {old}", "cannot import 'nowhere:X @ {old}': ImportError: no nowhere below {old}"),
        ("kernels.inner:whcih @ {old}", "kernels.inner @ {old} has no attribute 'whcih'; did you mean 'which'?"),
        ("kernels.inner: @ {old}", "'kernels.inner: @ {old}' names no attribute"),
    ],
)
def test_a_missing_module_or_attribute_is_an_error(trees: tuple[Path, Path], name: str, message: str) -> None:
    """If a tree lacks a module or attribute, the message names what is missing and the tree."""
    with pytest.raises(PluginError) as raised:
        load(name.format(old=trees[1]))
    assert str(raised.value).startswith(message.format(old=trees[1]))


def test_a_tree_must_be_a_folder(trees: tuple[Path, Path]) -> None:
    """``check_name`` refuses a tree that is not a folder, before anything is loaded."""
    check_name(f"sdpa @ {trees[1]}")
    with pytest.raises(PluginError, match="no such folder: nowhere"):
        check_name("sdpa @ nowhere")


def test_compiled_calls_import_from_their_own_tree(trees: tuple[Path, Path]) -> None:
    """A compiled function gets modules of its own tree, whether they are imported inside the function or before it."""
    source = (
        "import torch\nfrom functools import partial\nfrom factor import K\n"
        "compiled = partial(torch.compile, backend='eager', fullgraph=True)\n"
        "@compiled\ndef before(x):\n    return x * K\n"
        "@compiled\ndef during(x):\n    from factor import K\n    return x * K\n"
    )
    for number, folder in enumerate(trees, start=2):
        write(folder, {"factor.py": f"K = {number}", "mine.py": source})
    old, new = resolve_in_trees("mine.py:before", trees[1])
    one = torch.ones(2, 2)
    assert [load(name)(one)[0, 0].item() for name in (new, old)] == [2, 3]
    assert load(new.replace("before", "during"))(one)[0, 0].item() == 2
    assert load(old.replace("before", "during"))(one)[0, 0].item() == 3


def test_compiled_calls_import_the_modules_beside_their_own_file(tmp_path: Path) -> None:
    """A compiled function of a named file gets the modules beside this file, although no other code can import them."""
    source = (
        "import torch\nfrom functools import partial\n@partial(torch.compile, backend='eager', fullgraph=True)\n"
        "def during(x):\n    from factor import K\n    return x * K\n"
    )
    folders = [write(tmp_path / str(K), {"factor.py": f"K = {K}", "mine.py": source}) for K in (2, 3)]
    during = [load(f"{folder}/mine.py:during") for folder in folders]
    assert [call(torch.ones(2, 2))[0, 0].item() for call in (*during, *during)] == [2, 3, 2, 3]
    lacking = write(tmp_path / "4", {"mine.py": "def find():\n    import factor\n"})
    with pytest.raises(ModuleNotFoundError):
        load(f"{lacking}/mine.py:find")()


def test_each_tree_is_opened_once(trees: tuple[Path, Path]) -> None:
    """Two spellings of a tree's path open one tree, and names of one tree use the same modules."""
    assert SourceTree.open(trees[1]) is SourceTree.open(trees[1] / "kernels" / "..")
    assert load(f"kernels.inner:which @ {trees[1]}") is load(f"kernels.way_0:which @ {trees[1]}")


def test_a_module_that_only_a_tree_has_is_found_in_its_src(tmp_path: Path) -> None:
    """A process that cannot import a module finds it in the tree that a name gives, and in its folder ``src``."""
    for place, content in (("lone_module.py", "top"), ("src/lone_package/__init__.py", "src")):
        write(tmp_path, {place: f"FOUND = {content!r}\n"})
    assert load(f"lone_module:FOUND @ {tmp_path}") == "top"
    assert load(f"lone_package:FOUND @ {tmp_path}") == "src"
    with pytest.raises(PluginError, match="no neither_module below"):
        load(f"neither_module:FOUND @ {tmp_path}")
