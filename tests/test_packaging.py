"""Tests of the contents of wheel and sdist, and of a wheel that is installed outside the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

from attnbench.refusals import write_install_line

pytestmark = pytest.mark.install

ROOT = Path(__file__).parents[1]
SOURCES = {
    **dict.fromkeys(
        [f"attn{name}" for name in ("bench", "sweep", "cheats", "invariance", "models", "studies", "gate", "history")],
        ROOT / "harness",
    ),
    **dict.fromkeys(("attnzoo", "attnmechanisms"), ROOT / "implementations"),
}
# Time limit of each command: enough for importing torch and xformers on a busy machine.
TIMEOUT_S = 900
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without PYTHONPATH, so that it cannot import the checkout, and capture its output."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def run_successfully(*command: str | Path, cwd: Path) -> str:
    """Run a command, assert that it exits with 0, and return its standard output."""
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def find_only(folder: Path, pattern: str) -> Path:
    """Return the only file in a folder that matches a pattern."""
    [found] = folder.glob(pattern)
    return found


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist and the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("built")
    run_successfully(sys.executable, "-m", "hatchling", "build", "--directory", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def installed(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the scripts of a new virtual environment with the installed wheel.

    The new environment can import the packages of this environment, but not the checkout.
    """
    home = tmp_path_factory.mktemp("installed") / "env"
    venv.create(home, with_pip=False)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    run_successfully(
        *PIP,
        "--python",
        scripts / "python",
        "install",
        "--no-deps",
        "--no-index",
        find_only(distributions, "*.whl"),
        cwd=home,
    )
    # The packages of this environment are added after pip has run, because pip would take the editable install of this
    # environment for an installed attnbench. Python does not read the .pth files of a folder that was itself added by a
    # .pth file, so the new environment cannot import the editable install.
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = run_successfully(scripts / "python", "-c", ask, cwd=home).strip()
    Path(packages, "surroundings.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return scripts


def list_contents(wheel: Path) -> set[str]:
    """Return the names of the files in a wheel, except its metadata."""
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_holds_all_files_of_its_packages_and_no_others(distributions: Path) -> None:
    """The files of the wheel are exactly the files of the source packages."""
    packaged = list_contents(find_only(distributions, "*.whl"))
    sources = {
        path.relative_to(root).as_posix()
        for package, root in SOURCES.items()
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packaged == sources
    assert {f"{package}/py.typed" for package in SOURCES} | {"attnbench/oracle/sentences.txt"} <= packaged
    assert any(name.startswith("attnbench/report/templates/") for name in packaged)


def test_wheel_holds_the_licence_and_the_entry_points(distributions: Path) -> None:
    """The metadata contains the licence, the command and the entry points of built-in implementations."""
    with ZipFile(find_only(distributions, "*.whl")) as archive:
        metadata = {PurePosixPath(name).name: name for name in archive.namelist() if ".dist-info/" in name}
        assert "Permission is hereby granted" in archive.read(metadata["LICENSE"]).decode()
        entry_points = archive.read(metadata["entry_points.txt"]).decode()
    assert "attnbench = attnbench.cli:main" in entry_points
    assert "torch_mha = attnzoo.torch_mha:TORCH_MHA" in entry_points


def test_sdist_holds_the_tests_and_builds_the_same_wheel(distributions: Path, tmp_path: Path) -> None:
    """The sdist contains the files that the tests need; a wheel built from it has the files of the checkout's wheel."""
    sdist = find_only(distributions, "*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"LICENSE", "Makefile", "constraints.txt", "requirements-sentences.txt", "asv.conf.json"}
    assert needed | {path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/*.py")} <= names
    wheel = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", tmp_path, sdist)
    run_successfully(*PIP, *wheel, cwd=tmp_path)
    assert list_contents(find_only(tmp_path, "*.whl")) == list_contents(find_only(distributions, "*.whl"))


def test_installed_command_lists_its_commands(installed: Path, tmp_path: Path) -> None:
    """``attnbench --help`` runs from the installed wheel, and names every command."""
    home = run_successfully(installed / "python", "-c", "import attnbench; print(attnbench.__file__)", cwd=tmp_path)
    assert Path(home.strip()).is_relative_to(installed.parent)
    output = run_successfully(installed / "attnbench", "--help", cwd=tmp_path)
    commands = ("list", "conform", "profile", "report", "compare", "reproduce", "run", "sweep", "cheats", "study")
    assert all(command in output for command in commands)


def test_installed_command_lists_the_built_in_implementations(installed: Path, tmp_path: Path) -> None:
    """``attnbench list`` lists the implementations of the wheel."""
    output = run_successfully(installed / "attnbench", "list", cwd=tmp_path)
    assert all(name in output for name in ("torch_mha", "naive_loop", "reshaped", "sdpa"))


@pytest.fixture(scope="module")
def bare(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the scripts of a new environment with the wheel, what it requires, and pytest."""
    home = tmp_path_factory.mktemp("bare") / "env"
    venv.create(home, with_pip=False)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    wanted = ("-c", ROOT / "constraints.txt", find_only(distributions, "*.whl"), "pytest")
    run_successfully(*PIP, "--python", scripts / "python", "install", *wanted, cwd=home)
    return scripts


def test_a_bare_installation_checks_times_and_stores(bare: Path, tmp_path: Path) -> None:
    """Without the packages of reports and of fuzzing, ``conform``, ``profile``, ``--json`` and the plug-in work."""
    listed = json.loads(run_successfully(*PIP, "--python", bare / "python", "list", "--format=json", cwd=tmp_path))
    assert {one["name"].lower() for one in listed}.isdisjoint({"pandas", "matplotlib", "hypothesis", "xformers"})
    checked = run_successfully(
        bare / "attnbench", "conform", "reshaped", "--suite", "quick", "--json", "a.json", cwd=tmp_path
    )
    assert "reshaped  yes, quick" in checked
    assert json.loads((tmp_path / "a.json").read_text())["findings"]
    size = ("--lengths", "16", "--width", "16", "--heads", "2", "--passes", "forward", "--processes", "1")
    run_successfully(bare / "attnbench", "profile", "reshaped", *size, "--json", "b.json", cwd=tmp_path)
    assert json.loads((tmp_path / "b.json").read_text())
    own = ("-q", "--attention", "reshaped", "--attention-suite", "quick", "-k", "forward_parity", "-m", "attnbench")
    assert " passed" in run_successfully(bare / "python", "-m", "pytest", *own, cwd=tmp_path)


@pytest.mark.parametrize(("words", "extra"), [("run reshaped", "report"), ("conform reshaped --suite fuzz", "fuzz")])
def test_a_bare_installation_names_what_is_missing(bare: Path, tmp_path: Path, words: str, extra: str) -> None:
    """A command that needs further packages ends at once with the line that installs them."""
    done = run(bare / "attnbench", *words.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(f"and this needs it: {write_install_line(extra)}\n")
