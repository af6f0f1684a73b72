"""Tests of names: where they lead, and the one line that says why they lead nowhere."""

import sys
import tomllib
from pathlib import Path

import pytest

from attnbench.operators.attention_core import AttentionCoreProblem
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.registry import IMPLEMENTATIONS, OPERATORS, PluginError, check_name, describe_origin, display_name, find_baseline, find_operator_baseline, list_names, list_operators, load, load_operator, load_problem_types, write_import_lines
from attnmechanisms.operators import MECHANISMS

_ENTRIES = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
# As the messages list them.
BUILT_IN, OPERATOR_NAMES = (", ".join(sorted(_ENTRIES[group])) for group in (IMPLEMENTATIONS, OPERATORS))


class Installed:
    """Makes distributions that register entry points, in a folder that is searched first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, distribution: str, *entries: str, group: str = IMPLEMENTATIONS) -> None:
        """Install a distribution with entry points like ``name = module:attribute``."""
        info = self._folder / f"{distribution}-1.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *entries, ""]))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """What installs entry points for the length of a test."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    return Installed(tmp_path / "site")


def fault(name: str) -> str:
    """What is said of a name that cannot be loaded; one line."""
    with pytest.raises(PluginError) as raised:
        load(name)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def own_file(folder: Path, source: str = "X = 1\n", name: str = "mine.py") -> Path:
    """File of somebody's own."""
    path = folder / name
    path.write_text(source)
    return path


# Names that lead somewhere


def test_registered_names_are_sorted_and_load_nothing(installed: Installed) -> None:
    """Listing names imports no plug-in, so that a broken one breaks only those who ask for it."""
    installed("broken", "broken = no_such_module:X")
    assert list_names() == sorted([*BUILT_IN.split(", "), "broken"])
    assert "no_such_module" not in sys.modules
    assert fault("broken") == "cannot import 'broken': ModuleNotFoundError: No module named 'no_such_module'"


def test_all_three_forms_lead_to_the_object(tmp_path: Path) -> None:
    """A registered name, a module and a file."""
    assert load("per_head").name == "per_head"
    assert load("math:pi") > 3
    assert load(f"{own_file(tmp_path)}:X") == 1
    assert load("multihead", OPERATORS) is load_operator("multihead") is OPERATOR


def test_a_file_is_run_once(tmp_path: Path) -> None:
    """Two attributes of a file come from one module, which pickles and dataclasses find by its name."""
    path = own_file(
        tmp_path,
        "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int\nB = A\n",
    )
    first = load(f"{path}:A")
    assert load(f"{path}:B") is first
    assert sys.modules[first.__module__].A is first


def test_files_of_the_same_name_are_kept_apart(tmp_path: Path) -> None:
    """The module's name is made from the whole path."""
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        own_file(tmp_path / str(number), f"X = {number}\n")
    assert [load(f"{tmp_path}/{number}/mine.py:X") for number in (1, 2)] == [1, 2]


def test_a_file_that_failed_is_run_again(tmp_path: Path) -> None:
    """Half a module is never found again."""
    path = own_file(tmp_path, "A = 1\nraise ValueError('no')\n")
    fault(f"{path}:A")
    own_file(tmp_path, "A = 25\n")
    assert load(f"{path}:A") == 25


def test_operators_are_found_by_the_case() -> None:
    """An operator says what its problems are, and which implementation is the reference itself."""
    assert load_problem_types() == {"attention_core": AttentionCoreProblem, "multihead": MultiheadProblem} | {
        name: mechanism.problem for name, mechanism in MECHANISMS.items()
    }
    assert list_operators() == OPERATOR_NAMES.split(", ")
    assert find_operator_baseline("attention_core") == "core_sdpa"
    assert find_operator_baseline("of_somebody_elses") == ""
    assert find_baseline(OPERATOR.suite("quick")[0].id) == "torch_mha"


# Names that lead nowhere


def test_an_unknown_name_is_told_with_near_ones() -> None:
    """The nearest names come first, then all."""
    assert fault("sdpa_flsh") == (
        "unknown implementation 'sdpa_flsh'; did you mean 'sdpa_flash' or 'core_sdpa_flash' or 'sdpa_math'? "
        f"available: {BUILT_IN}"
    )
    assert fault("zzz") == f"unknown implementation 'zzz'; available: {BUILT_IN}"
    with pytest.raises(PluginError) as raised:
        load_operator("multihaed")
    assert str(raised.value) == f"unknown operator 'multihaed'; did you mean 'multihead'? available: {OPERATOR_NAMES}"


def test_a_missing_file_is_told_as_such(tmp_path: Path) -> None:
    """With the path as it was given."""
    path = tmp_path / "absent.py"
    assert fault(f"{path}:X") == f"no such file: {path}"
    assert fault("absent.py:X") == "no such file: absent.py"


def test_a_missing_attribute_is_told_with_near_ones(tmp_path: Path) -> None:
    """Public names of the file are listed."""
    path = own_file(tmp_path, "import math\nflash, naive, _private = 1, 2, 3\n")
    assert fault(f"{path}:flsh") == (
        f"{path} has no attribute 'flsh'; did you mean 'flash'? available: flash, math, naive"
    )
    empty = own_file(tmp_path, "", "empty.py")
    assert fault(f"{empty}:X") == f"{empty} has no attribute 'X'; available: none"
    assert fault("errno:no_such").startswith("errno has no attribute 'no_such'; available: E2BIG, ")


def test_a_name_without_an_attribute_is_told_what_to_write(tmp_path: Path) -> None:
    """The remedy is part of the line."""
    path = own_file(tmp_path)
    assert fault(f"{path}:") == f"'{path}:' names no attribute; write {path}:NAME"


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
    """It names what was asked for and the cause."""
    path = own_file(tmp_path, source)
    assert fault(f"{path}:X") == f"cannot import '{path}:X': {cause}"


def test_a_module_that_does_not_exist_is_one_line() -> None:
    """Modules are told like files."""
    assert (
        fault("no_such.module:X") == "cannot import 'no_such.module:X': ModuleNotFoundError: No module named 'no_such'"
    )


def test_an_entry_point_without_its_attribute_is_one_line(installed: Installed) -> None:
    """A distribution may register what it does not have."""
    installed("careless", "careless = math:no_such")
    assert fault("careless") == "cannot import 'careless': AttributeError: module 'math' has no attribute 'no_such'"


def test_a_name_that_two_distributions_register_is_refused(installed: Installed) -> None:
    """Neither wins silently; both are named, with the way to ask for one."""
    installed("first", "clash = math:pi")
    installed("second", "clash = math:e")
    assert sorted(fault("clash").split(": ", 1)[1].split("; ")[0].split(", ")) == [
        "math:e from second",
        "math:pi from first",
    ]
    assert fault("clash").startswith("'clash' is registered more than once: ")
    assert fault("clash").endswith("; ask for one of them as module:attribute")
    assert load("math:e") < load("math:pi")


def test_the_same_entry_registered_twice_is_no_clash(installed: Installed) -> None:
    """An installation that is found twice, as editable ones sometimes are, leads to one object."""
    installed("first", "twice = math:pi")
    installed("second", "twice = math:pi")
    assert load("twice") > 3
    assert list_names().count("twice") == 1


# Without importing


def test_a_name_is_checked_without_importing_it(tmp_path: Path) -> None:
    """What can be known beforehand is refused; a file's content is not looked at."""
    check_name("sdpa")
    check_name("no_such.module:X")
    check_name(f"{own_file(tmp_path, 'raise SystemExit')}:X")
    for name, words in [
        ("sdpaa", "unknown implementation 'sdpaa'; did you mean 'sdpa'"),
        ("absent.py:X", "no such file: absent.py"),
        (":X", "':X' is not a valid name; write package.module:attribute or path/to/file.py:attribute"),
        ("math:", "'math:' is not a valid name; write package.module:attribute or path/to/file.py:attribute"),
    ]:
        with pytest.raises(PluginError) as raised:
            check_name(name)
        assert str(raised.value).startswith(words)


def test_the_origin_is_the_module_and_its_distribution(installed: Installed) -> None:
    """A name that says where it leads is its own origin."""
    installed("somebodys", "theirs = math:pi")
    assert describe_origin("theirs") == "math:pi (somebodys 1.5)"
    assert describe_origin("per_head").startswith("attnzoo.per_head:PER_HEAD (attnbench ")
    assert describe_origin("math:pi") == "math:pi"
    with pytest.raises(PluginError, match="unknown implementation 'nobodys'"):
        describe_origin("nobodys")


def test_a_file_is_shown_from_here_and_never_with_folders_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored names tell nothing of folders outside the one where the command ran."""
    here = tmp_path / "home" / "somebody" / "project"
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


def test_source_lines_bind_the_same_object(tmp_path: Path) -> None:
    """Without the registry, a program gets at what a name leads to."""
    path = own_file(tmp_path, "X = [1, 2]\n")
    for name, lines in [
        ("sdpa_math", "from attnzoo.sdpa import SDPA_MATH as implementation\n"),
        ("math:pi", "from math import pi as implementation\n"),
        (f"{path}:X", f"import runpy\n\nimplementation = runpy.run_path({str(path)!r})['X']\n"),
    ]:
        assert write_import_lines(name) == lines
        bound: dict[str, object] = {}
        exec(lines, bound)
        assert bound["implementation"] == load(name)


def test_every_registered_name_is_an_implementation_of_that_name() -> None:
    """What needs an absent library is imported too; the library itself is asked for when it is used."""
    for name in BUILT_IN.split(", "):
        assert load_implementation(name).name == name
