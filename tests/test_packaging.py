"""Wheel and sdist hold what they should, and an installed wheel works away from the checkout."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.install

ROOT = Path(__file__).parents[1]
SOURCES = {
    "attnbench": ROOT / "harness", "attnzoo": ROOT / "implementations", "attnmechanisms": ROOT / "implementations",
}  # fmt: skip
# Enough for importing torch and xformers on a busy machine.
TIMEOUT_S = 180
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run away from the checkout's import paths and keep what was said."""
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


def succeed(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that has to exit with 0."""
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def only(folder: Path, pattern: str) -> Path:
    """The one file in a folder that matches."""
    [found] = folder.glob(pattern)
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist and the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("built")
    succeed(sys.executable, "-m", "hatchling", "build", "--directory", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts of a fresh environment with the wheel and, beside it, the packages of this environment."""
    home = tmp_path_factory.mktemp("installed") / "env"
    venv.create(home, with_pip=False)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    succeed(
        *PIP,
        "--python",
        scripts / "python",
        "install",
        "--no-deps",
        "--no-index",
        only(built, "*.whl"),
        cwd=home,
    )
    # Only after pip has run, which would take the editable install for an installed attnbench. The .pth files
    # of a folder that was itself added by a .pth file are not read, so the editable install stays out.
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = succeed(scripts / "python", "-c", ask, cwd=home).strip()
    Path(packages, "surroundings.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return scripts


def contents(wheel: Path) -> set[str]:
    """Files of a wheel, without its metadata."""
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_holds_its_packages_whole_and_nothing_else(built: Path) -> None:
    """Every file of the source packages, and no other, is in the wheel."""
    packaged = contents(only(built, "*.whl"))
    sources = {
        path.relative_to(root).as_posix()
        for package, root in SOURCES.items()
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packaged == sources
    assert {
        "attnbench/py.typed",
        "attnzoo/py.typed",
        "attnmechanisms/py.typed",
        "attnbench/oracle/sentences.txt",
    } <= packaged
    assert any(name.startswith("attnbench/report/templates/") for name in packaged)


def test_wheel_holds_the_licence_and_the_entry_points(built: Path) -> None:
    """The metadata names the licence's file, the command and the built-in implementations."""
    with ZipFile(only(built, "*.whl")) as archive:
        metadata = {PurePosixPath(name).name: name for name in archive.namelist() if ".dist-info/" in name}
        assert "Permission is hereby granted" in archive.read(metadata["LICENSE"]).decode()
        entry_points = archive.read(metadata["entry_points.txt"]).decode()
    assert "attnbench = attnbench.cli:main" in entry_points
    assert "torch_mha = attnzoo.torch_mha:TORCH_MHA" in entry_points


def test_sdist_holds_what_is_needed_to_test_it_and_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    """From the sdist alone the same wheel can be built and the tests can be run."""
    sdist = only(built, "*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"LICENSE", "Makefile", "constraints.txt", "requirements-sentences.txt", "asv.conf.json"}
    assert needed | {path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/*.py")} <= names
    wheel = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", tmp_path, sdist)
    succeed(*PIP, *wheel, cwd=tmp_path)
    assert contents(only(tmp_path, "*.whl")) == contents(only(built, "*.whl"))


def test_installed_command_says_what_it_can_do(installed: Path, tmp_path: Path) -> None:
    """``attnbench --help`` works from a wheel, and it is the wheel that answers."""
    home = succeed(installed / "python", "-c", "import attnbench; print(attnbench.__file__)", cwd=tmp_path)
    assert Path(home.strip()).is_relative_to(installed.parent)
    said = succeed(installed / "attnbench", "--help", cwd=tmp_path)
    commands = ("list", "conform", "profile", "report", "compare", "reproduce", "run")
    assert all(command in said for command in commands)


def test_installed_command_lists_the_built_in_implementations(installed: Path, tmp_path: Path) -> None:
    """``attnbench list`` finds the implementations that came with the wheel."""
    said = succeed(installed / "attnbench", "list", cwd=tmp_path)
    assert all(name in said for name in ("torch_mha", "naive_loop", "reshaped", "sdpa"))
