"""Tests of ``find_name``: the name by which a new process imports an object, or an error with the remedy."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

from attnbench.kernel import from_kernel
from attnbench.plugins.importable import build_search_path, find_name
from attnbench.plugins.registry import PluginError, load
from attnzoo.sdpa import SDPA

SOURCE = """
from torch import nn

from attnbench.kernel import from_kernel


class Mine(nn.Module):
    class Inner(nn.Module):
        pass


def attention(q, k, v):
    return v


def made():
    class Local(nn.Module):
        pass

    return Local


WRAPPED = from_kernel(attention, name="wrapped")
MADE = made()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory on Python's search path, with a module, a package, and a folder without ``__init__.py``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("lone_attention.py", "packed_attention/inner.py", "loose_attention/inner.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(SOURCE)
    (tmp_path / "packed_attention/__init__.py").touch()
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("attribute", ["Mine", "attention", "WRAPPED", "MADE"])
@pytest.mark.parametrize(
    ("module", "place"),
    [
        ("lone_attention", "lone_attention.py"),
        ("packed_attention.inner", "packed_attention.inner"),
        ("loose_attention.inner", "loose_attention.inner"),
    ],
)
def test_an_object_is_named_by_its_module(here: Path, module: str, place: str, attribute: str) -> None:
    """The name of an object begins with the module or the file in which the object is bound to a variable."""
    thing = getattr(import_module(module), attribute)
    assert find_name(thing) == f"{place}:{attribute}"


def test_the_name_loads_the_same_object(here: Path) -> None:
    """Loading by the name that ``find_name`` returns gives the identical object."""
    thing = import_module("packed_attention.inner").WRAPPED
    assert load(find_name(thing)) is thing


def test_an_imported_object_is_named_by_the_module_that_defines_it(here: Path) -> None:
    """An instance is not named by a file that only imports the instance, as a file of tests does."""
    (here / "test_of_mine.py").write_text("from lone_attention import WRAPPED\n")
    assert find_name(import_module("test_of_mine").WRAPPED) == "lone_attention.py:WRAPPED"


def test_a_module_that_is_not_importable_by_name_is_named_by_its_file(here: Path) -> None:
    """The import mode ``importlib`` of pytest, for example, gives a module a name that a new process cannot import."""
    thing = load("loose_attention/inner.py:Mine")
    assert find_name(thing) == "loose_attention/inner.py:Mine"
    sys.modules["nowhere.inner"] = module = ModuleType("nowhere.inner")
    module.__file__ = str(here / "loose_attention/inner.py")
    module.Mine = type("Mine", (nn.Module,), {"__module__": "nowhere.inner", "__qualname__": "Mine"})
    assert find_name(module.Mine) == "loose_attention/inner.py:Mine"


def test_a_registered_object_keeps_its_registered_name() -> None:
    """A registered implementation has its registered name, as in results and expected failures."""
    assert find_name(SDPA) == "sdpa"


def test_a_name_is_returned_unchanged(here: Path) -> None:
    """A name of an implementation is returned as it is; an unknown name is an error."""
    assert find_name("sdpa") == "sdpa"
    with pytest.raises(PluginError, match=r"unknown implementation 'sdpaa'; did you mean 'sdpa'"):
        find_name("sdpaa")
    with pytest.raises(PluginError, match=r"no such file: missing\.py"):
        find_name("missing.py:Mine")


def test_an_object_of_a_script_is_named_by_its_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ``python file.py`` the name begins with the file, under ``python -m`` with the module."""
    main = ModuleType("__main__")
    main.__file__ = str(here / "lone_attention.py")
    main.Mine = type("Mine", (nn.Module,), {"__module__": "__main__", "__qualname__": "Mine"})
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert find_name(main.Mine) == "lone_attention.py:Mine"
    main.__spec__ = import_module("packed_attention.inner").__spec__
    assert find_name(main.Mine) == "packed_attention.inner:Mine"


def test_an_object_of_an_interactive_session_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If ``__main__`` has no file, the message says where to put the object and which name to pass."""
    main = ModuleType("__main__")
    main.Mine = type("Mine", (nn.Module,), {"__module__": "__main__", "__qualname__": "Mine"})
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(PluginError, match=r"put it in a file, say my_attention\.py, and pass 'my_attention\.py:Mine'"):
        find_name(main.Mine)


def test_an_object_that_no_module_contains_is_an_error() -> None:
    """A local class or an instance in a local variable is an error, because a new process cannot import it."""

    class Local(nn.Module):
        pass

    for thing in (Local, from_kernel(lambda q, k, v: v, name="nameless")):
        with pytest.raises(PluginError, match="which no module contains: bind it to a name at the top level of a file"):
            find_name(thing)


@pytest.mark.parametrize("thing", [3, nn.Linear(2, 2), None])
def test_an_object_that_is_not_an_implementation_is_an_error(thing: object) -> None:
    """An object such as an nn.Module instance is an error; the message names the object's type."""
    with pytest.raises(PluginError, match=f"{type(thing).__name__} objects are not implementations: pass the class"):
        find_name(thing)


def test_the_search_path_has_added_folders_and_none_of_the_interpreters(here: Path) -> None:
    """A new process gets the folders that this process added, and uses its own standard library and packages."""
    folders = build_search_path().split(":")
    assert str(here) in folders
    assert not [folder for folder in folders if folder.endswith(("site-packages", "lib-dynload", ".zip"))]
