"""Tests of the registry: names are resolved to objects, or raise an error of one line."""

import sys
import tomllib
from pathlib import Path

import pytest

from attnbench.operators.attention_core import AttentionCoreProblem
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.registry import (
    IMPLEMENTATIONS,
    OPERATORS,
    PluginError,
    check_name,
    describe_origin,
    display_name,
    find_baseline,
    find_operator_baseline,
    list_names,
    list_operators,
    load,
    load_operator,
    load_problem_types,
    write_import_lines,
)
from attnmechanisms.operators import MECHANISMS
from installed_plugins import Installer

_ENTRIES = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
# Registered implementations and operators, as messages list them: sorted, with commas between the names.
BUILT_IN, OPERATOR_NAMES = (", ".join(sorted(_ENTRIES[group])) for group in (IMPLEMENTATIONS, OPERATORS))


def catch_error(name: str) -> str:
    """Return the message of the PluginError that loading a name raises; it must be one line."""
    with pytest.raises(PluginError) as raised:
        load(name)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def write_file(folder: Path, source: str = "X = 1\n", name: str = "mine.py") -> Path:
    """Write a user's file and return its path."""
    path = folder / name
    path.write_text(source)
    return path


# Names that resolve to an object


def test_registered_names_are_sorted_and_load_nothing(install: Installer) -> None:
    """Listing names imports no plug-in, so that a broken plug-in fails only when it is loaded."""
    install("broken", "broken = no_such_module:X")
    assert list_names() == sorted([*BUILT_IN.split(", "), "broken"])
    assert "no_such_module" not in sys.modules
    assert catch_error("broken") == "cannot import 'broken': ModuleNotFoundError: No module named 'no_such_module'"


def test_a_name_has_three_forms(tmp_path: Path) -> None:
    """An object is loaded by a registered name, a module and attribute, or a file and attribute."""
    assert load("per_head").name == "per_head"
    assert load("math:pi") > 3
    assert load(f"{write_file(tmp_path)}:X") == 1
    assert load("multihead", OPERATORS) is load_operator("multihead") is OPERATOR


def test_a_file_is_run_once(tmp_path: Path) -> None:
    """A file is run once for all names in it; its module is in ``sys.modules``, as pickle and dataclasses need."""
    path = write_file(
        tmp_path,
        "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int\nB = A\n",
    )
    first = load(f"{path}:A")
    assert load(f"{path}:B") is first
    assert sys.modules[first.__module__].A is first


def test_files_of_the_same_name_are_different_modules(tmp_path: Path) -> None:
    """Two files ``mine.py`` in different folders are different modules, because a module's name is made of the path."""
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        write_file(tmp_path / str(number), f"X = {number}\n")
    assert [load(f"{tmp_path}/{number}/mine.py:X") for number in (1, 2)] == [1, 2]


def test_a_file_that_failed_is_run_again(tmp_path: Path) -> None:
    """A file that raised on import is run again, with its new content, when it is loaded again."""
    path = write_file(tmp_path, "A = 1\nraise ValueError('no')\n")
    catch_error(f"{path}:A")
    write_file(tmp_path, "A = 25\n")
    assert load(f"{path}:A") == 25


def test_operators_declare_problem_types_and_baselines() -> None:
    """Every operator declares a problem type and a baseline; for an unknown operator, the baseline is the name ""."""
    assert load_problem_types() == {"attention_core": AttentionCoreProblem, "multihead": MultiheadProblem} | {
        name: mechanism.problem for name, mechanism in MECHANISMS.items()
    }
    assert list_operators() == OPERATOR_NAMES.split(", ")
    assert find_operator_baseline("attention_core") == "core_sdpa"
    assert find_operator_baseline("unknown_operator") == ""
    assert find_baseline(OPERATOR.suite("quick")[0].id) == "torch_mha"


# Names that do not resolve to an object


def test_an_unknown_name_is_an_error_with_similar_names() -> None:
    """The message suggests similar names if there are any, and then lists all registered names."""
    assert catch_error("sdpa_flsh") == (
        "unknown implementation 'sdpa_flsh'; did you mean 'sdpa_flash' or 'core_sdpa_flash' or 'sdpa_math'? "
        f"available: {BUILT_IN}"
    )
    assert catch_error("zzz") == f"unknown implementation 'zzz'; available: {BUILT_IN}"
    with pytest.raises(PluginError) as raised:
        load_operator("multihaed")
    assert str(raised.value) == f"unknown operator 'multihaed'; did you mean 'multihead'? available: {OPERATOR_NAMES}"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """The message quotes the path as the user wrote it."""
    path = tmp_path / "absent.py"
    assert catch_error(f"{path}:X") == f"no such file: {path}"
    assert catch_error("absent.py:X") == "no such file: absent.py"


def test_a_missing_attribute_is_an_error_with_similar_names(tmp_path: Path) -> None:
    """The message suggests similar attributes, and then lists the public names of the file or module."""
    path = write_file(tmp_path, "import math\nflash, naive, _private = 1, 2, 3\n")
    assert catch_error(f"{path}:flsh") == (
        f"{path} has no attribute 'flsh'; did you mean 'flash'? available: flash, math, naive"
    )
    empty = write_file(tmp_path, "", "empty.py")
    assert catch_error(f"{empty}:X") == f"{empty} has no attribute 'X'; available: none"
    assert catch_error("errno:no_such").startswith("errno has no attribute 'no_such'; available: E2BIG, ")


def test_a_name_without_an_attribute_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    """For a name that ends in a colon, the message says to write ``path:NAME``."""
    path = write_file(tmp_path)
    assert catch_error(f"{path}:") == f"'{path}:' names no attribute; write {path}:NAME"


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("raise ValueError('first\\n  second')", "ValueError: first second"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = = 1", "SyntaxError: invalid syntax (mine.py, line 1)"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_raises_on_import_is_one_line(tmp_path: Path, source: str, cause: str) -> None:
    """The message has the requested name and the exception of the import, in one line."""
    path = write_file(tmp_path, source)
    assert catch_error(f"{path}:X") == f"cannot import '{path}:X': {cause}"


def test_a_module_that_does_not_exist_is_one_line() -> None:
    """For a module that does not exist, the message has the requested name and the ModuleNotFoundError."""
    assert (
        catch_error("no_such.module:X")
        == "cannot import 'no_such.module:X': ModuleNotFoundError: No module named 'no_such'"
    )


def test_an_entry_point_without_its_attribute_is_one_line(install: Installer) -> None:
    """If a distribution registers an attribute that its module lacks, the error of loading it is one line."""
    install("careless", "careless = math:no_such")
    assert (
        catch_error("careless") == "cannot import 'careless': AttributeError: module 'math' has no attribute 'no_such'"
    )


def test_a_name_that_two_distributions_register_is_refused(install: Installer) -> None:
    """The message names both distributions, and the remedy: module:attribute instead of the registered name."""
    install("first", "clash = math:pi")
    install("second", "clash = math:e")
    assert sorted(catch_error("clash").split(": ", 1)[1].split("; ")[0].split(", ")) == [
        "math:e from second",
        "math:pi from first",
    ]
    assert catch_error("clash").startswith("'clash' is registered more than once: ")
    assert catch_error("clash").endswith("; ask for one of them as module:attribute")
    assert load("math:e") < load("math:pi")


def test_the_same_entry_registered_twice_is_not_ambiguous(install: Installer) -> None:
    """If two distributions register the same module:attribute by the same name, it is listed once and can be loaded."""
    install("first", "twice = math:pi")
    install("second", "twice = math:pi")
    assert load("twice") > 3
    assert list_names().count("twice") == 1


# Names that are checked or displayed without an import


def test_a_name_is_checked_without_importing_it(tmp_path: Path) -> None:
    """``check_name`` refuses unknown names, missing files and malformed names; it does not run a file."""
    check_name("sdpa")
    check_name("no_such.module:X")
    check_name(f"{write_file(tmp_path, 'raise SystemExit')}:X")
    for name, words in [
        ("sdpaa", "unknown implementation 'sdpaa'; did you mean 'sdpa'"),
        ("absent.py:X", "no such file: absent.py"),
        (":X", "':X' is not a valid name; write package.module:attribute or path/to/file.py:attribute"),
        ("math:", "'math:' is not a valid name; write package.module:attribute or path/to/file.py:attribute"),
    ]:
        with pytest.raises(PluginError) as raised:
            check_name(name)
        assert str(raised.value).startswith(words)


def test_the_origin_is_the_module_and_its_distribution(install: Installer) -> None:
    """The origin of a registered name is its module:attribute and distribution; that of module:attribute is itself."""
    install("other", "foreign = math:pi")
    assert describe_origin("foreign") == "math:pi (other 1.5)"
    assert describe_origin("per_head").startswith("attnzoo.per_head:PER_HEAD (attnbench ")
    assert describe_origin("math:pi") == "math:pi"
    with pytest.raises(PluginError, match="unknown implementation 'no_such_name'"):
        describe_origin("no_such_name")


def test_a_displayed_file_has_no_folders_outside_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``display_name`` keeps folders below the working directory, and drops all folders of a file outside it."""
    here = tmp_path / "home" / "user" / "project"
    (here / "kernels").mkdir(parents=True)
    monkeypatch.chdir(here)
    for given, expected in [
        ("sdpa", "sdpa"),
        ("package.module:attribute", "package.module:attribute"),
        ("mine.py:X", "mine.py:X"),
        ("./kernels/../mine.py:X", "mine.py:X"),
        ("kernels/mine.py:X", "kernels/mine.py:X"),
        (f"{here}/kernels/mine.py:X", "kernels/mine.py:X"),
        ("../secret/mine.py:X", "mine.py:X"),
        ("kernels/../../mine.py:X", "mine.py:X"),
        (f"{tmp_path}/mine.py:X", "mine.py:X"),
        ("/nowhere/mine.py:X", "mine.py:X"),
    ]:
        assert display_name(given) == expected
    (here / "linked").symlink_to(tmp_path)
    assert display_name("linked/mine.py:X") == "mine.py:X"


# Standalone programs


def test_import_lines_bind_the_same_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import lines for standalone programs bind ``implementation`` to the object that ``load`` returns."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    path = write_file(tmp_path, "X = [1, 2]\nclass Outer:\n    inner = 3\n")
    for name, lines in [
        ("sdpa_math", "from attnzoo.sdpa import SDPA_MATH as implementation\n"),
        ("math:pi", "from math import pi as implementation\n"),
        ("math:pi.real", "from math import pi as implementation\n\nimplementation = implementation.real\n"),
        (f"{path}:X", None),
        (f"{path}:Outer.inner", None),
    ]:
        written = write_import_lines(name)
        assert lines in (None, written)
        bound: dict[str, object] = {}
        exec(written, bound)
        assert bound["implementation"] == load(name)


def test_every_registered_name_is_an_implementation_of_that_name() -> None:
    """Every registered name loads an implementation with that ``name``, even if the library that it uses is missing."""
    for name in BUILT_IN.split(", "):
        assert load_implementation(name).name == name


def test_an_operator_that_is_not_registered_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of an operator may come from a stored case id; a file of this name is not run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\n")
    with pytest.raises(PluginError):
        load_operator("evil.py:OPERATOR")
    assert not (tmp_path / "ran").exists()
