"""Environments of the sides of a gate that do not share one: another interpreter, or one that a command builds into.

A built environment is a virtual environment beside a worktree, and is removed with it. It finds what its command
installs first, then the files of the worktree, then the installation of the present interpreter: torch and attnbench
need not be installed again, and where the command installs another torch, that one counts.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import click
import msgspec

from attnbench.plugins.source_tree import INSTALLED
from attngate import probe
from attngate.errors import GateError

__all__ = ["Environment", "Interpreter", "build_environment", "describe_present", "find_interpreter", "run_in"]

# Name of the folder of a built environment, beside the worktree.
FOLDER = "environment"
# Lines of the file that lets a built environment find further modules, after what is installed into it: site reads such
# files in the order of their names.
FILE = "zzz_attnbench.pth"
# Longest time in which an interpreter says what it has, in seconds: it imports nothing but the standard library.
PROBE_S = 60.0
# Seconds in which a process ends after an interrupt; a run that is interrupted stores its end.
GRACE_S = 30.0
# Lines of the output of a build that failed, of which the last alone seldom says why: pip ends with a hint.
SHOWN = 30


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """What an interpreter has, as ``probe`` found it."""

    python: str
    torch: str
    missing: tuple[str, ...]
    # Hash of the code that measures.
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An interpreter, and the environment variables and the folder of its processes."""

    python: str
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    # Folders from which the code of a side must come; empty: what is loaded says so itself.
    roots: tuple[Path, ...] = ()


def describe_present() -> Interpreter:
    """Return what the present interpreter has."""
    return msgspec.convert(probe.describe_interpreter(), Interpreter)


def find_interpreter(python: str, option: str) -> str:
    """Return the path of an interpreter that can measure as the present one does.

    ``option`` is how the user named it.

    Raises: GateError where it is no interpreter of Python 3.11 or later, lacks a package, or has another attnbench.
    """
    path = shutil.which(Path(python).expanduser())
    if path is None:
        raise GateError(f"{option}: no program {python!r}: name an interpreter, such as ../before/.venv/bin/python")
    path = str(Path(path).absolute())  # a link stays one: by its place, Python finds its environment
    found = _probe(Environment(python=path, folder=Path.cwd()))
    if found is None:
        raise GateError(f"{option}: {python!r} is no Python of version 3.11 or later: name another interpreter")
    _refuse_unfit(found, option, python)
    return path


def build_environment(command: str, folder: Path, label: str) -> Environment:
    """Return an environment into which a command was run in the folder of a worktree.

    Raises: GateError where the environment cannot be made, the command fails, or attnbench is another one there.
    """
    place = folder.parent / FOLDER
    try:
        venv.EnvBuilder(symlinks=True, with_pip=True).create(place)
    except (OSError, subprocess.CalledProcessError) as error:
        raise GateError(
            f"--build: no virtual environment can be made ({error}): install ensurepip (on Debian: "
            "python3-venv), or build a checkout yourself and name its interpreter with --base-python"
        ) from error
    variables = {"VIRTUAL_ENV": str(place), "PATH": f"{place / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    _show_modules(place, [folder, folder / "src"])
    with tempfile.TemporaryFile() as output:
        code = run_in(["/bin/sh", "-c", command], folder, variables, output=output)
        if code:
            lines = _read_lines(output)
            for line in lines[-SHOWN:]:
                click.echo(line, err=True)
            raise GateError(
                f"--build: {command!r} failed in {label} with exit code {code}: {lines[-1].strip()}; run it in a "
                "checkout of that revision to see all that it prints"
            )
    # The folder of a process must not hide what the command has installed.
    made = Environment(
        python=str(place / "bin" / "python"), folder=folder, variables=variables | {"PYTHONSAFEPATH": "1"},
        roots=(folder, place),
    )  # fmt: skip
    if found := _probe(made):
        _refuse_unfit(found, "--build", f"the environment of {label}")
        return made
    raise GateError(f"--build: after {command!r}, the environment of {label} has no Python: leave it in place")


def run_in(words: Sequence[str], folder: Path, variables: Mapping[str, str], *, output: IO[bytes] | None = None) -> int:
    """Run a program in a folder and return its exit code; an interrupt of this process interrupts it, too.

    ``output`` receives what it prints; None: standard error does.
    """
    begun = subprocess.Popen(
        words, cwd=folder, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, start_new_session=True,
        stdout=output or sys.__stderr__, stderr=output or sys.__stderr__,
    )  # fmt: skip
    try:
        return begun.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(begun.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            begun.wait(GRACE_S)
        raise
    finally:
        # What is left of its group, such as a compiler, would go on in a folder that is removed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(begun.pid, signal.SIGKILL)
        begun.wait()


def _probe(environment: Environment) -> Interpreter | None:
    """Return what an interpreter has; None if it is no suitable Python."""
    try:
        done = subprocess.run(
            [environment.python, "-P", probe.__file__], cwd=environment.folder, stdin=subprocess.DEVNULL,
            env={**os.environ, **environment.variables}, capture_output=True, timeout=PROBE_S, check=True,
        )  # fmt: skip
        return msgspec.convert(json.loads(done.stdout), Interpreter)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _refuse_unfit(found: Interpreter, option: str, name: str) -> None:
    if found.missing:
        raise GateError(
            f"{option}: {name} lacks {', '.join(found.missing)}: install attnbench and torch there, attnbench from the "
            "source that the present interpreter has"
        )
    if found.code != describe_present().code:
        raise GateError(
            f"{option}: {name} has other code of attnbench than the present interpreter, and would measure otherwise: "
            "install the same version of attnbench in both"
        )


def _show_modules(place: Path, folders: Sequence[Path]) -> None:
    """Let an environment find the modules of folders, and then those of the present installation."""
    paths = {"base": str(place), "platbase": str(place)}
    own = Path(sysconfig.get_path("purelib", scheme="venv", vars=paths))
    present = [entry for entry in sys.path if Path(entry).name in INSTALLED]
    # addsitedir reads the .pth files there, so that editable installations are found.
    lines = [*map(str, folders), *(f"import site; site.addsitedir({entry!r})" for entry in present)]
    (own / FILE).write_text("\n".join(lines) + "\n", "utf-8")


def _read_lines(output: IO[bytes]) -> list[str]:
    output.seek(0)
    lines = [line for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return lines or ["it printed nothing"]
