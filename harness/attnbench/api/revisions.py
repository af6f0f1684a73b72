"""Versions of a checkout as git knows them; a worktree of a base, which is removed afterwards.

The user's checkout and index stay as they are: git writes the worktree below the folder of temporary files.
"""

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile, rmtree
from typing import IO

import msgspec

from attnbench.jobs.command_lines import strip_folder

__all__ = [
    "RevisionError",
    "Version",
    "describe_version",
    "find_top",
    "find_variables",
    "is_folder",
    "open_base",
    "open_worktree",
    "store_working_tree",
]

# Prefix of the names of the folders with worktrees, and the file in such a folder that its process keeps locked.
PREFIX, LOCK = "attnbench-worktree-", "in-use"
# Variables by which git tells a hook its repository; the repository here is that of the current folder.
LOCAL = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
)  # fmt: skip
# Who makes the commit that stores a working tree; git may know nobody.
AUTHOR = {f"GIT_{who}_{what}": "attnbench" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
# Source files in which names of environment variables are looked for, and such a name in quotes.
SOURCES = ("*.py", "*.pyx", "*.c", "*.cc", "*.cpp", "*.cu", "*.cuh", "*.h", "*.hpp")
QUOTED = "[\"'][A-Za-z_][A-Za-z0-9_]*[\"']"
# What may be the name of a branch, a tag or a commit that can be fetched.
FETCHED = re.compile(r"\w(?!.*\.\.)[\w./-]*")
# Hexadecimal digits of a commit that are shown.
DIGITS = 12


class RevisionError(Exception):
    """What the user can mend; the message is one line, with the remedy."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison: the files in a folder."""

    # As the user named it, or "the working tree".
    name: str
    # Commit and hash of the files, as git names them; empty outside git.
    commit: str = ""
    tree: str = ""
    # Whether files differ from the commit, so that ``tree`` is not their hash.
    changed: bool = False

    @property
    def label(self) -> str:
        """The name and the commit."""
        more = f"{self.commit[:DIGITS]}{'+' if self.changed else ''}"
        return f"{self.name} ({more})" if more and not self.commit.startswith(self.name) else f"{more or self.name}"


def find_top(folder: Path) -> Path | None:
    """Return the top folder of the git repository of a folder; None outside one."""
    found = _run_git(folder, "rev-parse", "--show-toplevel")
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def describe_version(folder: Path, name: str) -> Version:
    """Return the version in a folder, and whether a tracked file or a new file of source code differs from git."""
    found = _run_git(folder, "rev-parse", "HEAD", "HEAD^{tree}")
    if found.returncode != 0:
        return Version(name=name)
    commit, tree = found.stdout.split()
    tracked = _run_git(folder, "status", "--porcelain", "--untracked-files=no").stdout
    new = _run_git(folder, "ls-files", "--others", "--exclude-standard", "--", "*.py").stdout
    return Version(name=name, commit=commit, tree=tree, changed=bool(tracked.strip() or new.strip()))


def find_variables(folder: Path) -> dict[str, str]:
    """Return the environment variables whose names stand in quotes in the tracked source files of a folder.

    The behaviour of the code may depend on their values.
    """
    found = _run_git(folder, "grep", "--no-color", "-hoE", QUOTED, "--", *SOURCES).stdout
    named = {line[1:-1] for line in found.splitlines()}
    return {name: value for name, value in os.environ.items() if name in named}


def is_folder(base: str) -> bool:
    """Whether a base is a folder, and not a revision."""
    # Path.is_dir raises OSError for a name that is too long, and takes an empty name for the current folder.
    return os.path.isdir(base)  # noqa: PTH112


@contextlib.contextmanager
def open_base(base: str, here: Path) -> Iterator[tuple[Path, Version]]:
    """Yield the folder of the base and its version: a folder that exists, else a worktree of a revision.

    The worktree is removed at the end, also after an error or an interrupt.

    Raises: RevisionError where there is no such revision, or where the folder is that of the new side.
    """
    if is_folder(base):
        if Path(base).resolve() in (here.resolve(), find_top(here)):
            raise RevisionError(
                f"--base: {base!r} is the folder of the new side: name another checkout, or a revision such as HEAD"
            )
        yield Path(base), describe_version(Path(base), strip_folder(base))
        return
    top = find_top(here)
    if top is None:
        raise RevisionError(
            f"--base: there is no folder {base!r}, and the current folder is in no git repository: name a folder with "
            "the base, or run this in the repository"
        )
    commit = _find_commit(top, base)
    _remove_abandoned(top)
    with open_worktree(top, commit) as folder:
        tree = _run_git(top, "rev-parse", f"{commit}^{{tree}}").stdout.strip()
        yield folder, Version(name=base, commit=commit, tree=tree)


@contextlib.contextmanager
def open_worktree(top: Path, commit: str) -> Iterator[Path]:
    """Yield the folder of a worktree of a commit; it and what lies beside it are removed at the end.

    Raises: RevisionError where git cannot make it.
    """
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as place:
        folder = Path(place) / commit[:DIGITS]
        with (Path(place) / LOCK).open("wb") as lock:
            _hold(lock)
            try:
                # A hook of the repository is not run.
                made = _run_git(top, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", folder, commit)
                if made.returncode != 0:
                    raise RevisionError(f"git cannot make a worktree of {commit[:DIGITS]}: {_find_fault(made.stderr)}")
                yield folder
            finally:
                _remove_worktree(top, folder)


def store_working_tree(top: Path) -> str:
    """Store the files of a checkout as a commit of no branch, and return it; new files that git ignores are left out.

    The checkout and its index stay as they are: git reads and writes a copy of the index.

    Raises: RevisionError where git cannot read a file.
    """
    with tempfile.TemporaryDirectory(prefix=PREFIX) as place:
        index = Path(place) / "index"
        own = top / _run_git(top, "rev-parse", "--git-path", "index").stdout.strip()
        if own.exists():
            copyfile(own, index)
        for step in (["add", "--all"], ["write-tree"]):
            done = _run_git(top, *step, GIT_INDEX_FILE=str(index))
            if done.returncode != 0:
                raise RevisionError(f"git cannot read the files of the working tree: {_find_fault(done.stderr)}")
        commit = ("commit-tree", done.stdout.strip(), "-p", "HEAD", "-m", "The working tree, as attnbench found it")
        return _run_git(top, "-c", "commit.gpgsign=false", *commit, **AUTHOR).stdout.strip()


def _find_commit(top: Path, base: str) -> str:
    if not base:
        raise RevisionError("--base is empty: name a revision such as HEAD, or the folder of another checkout")
    found = _run_git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}")
    if found.returncode == 0:
        return found.stdout.strip()
    if _run_git(top, "rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        raise RevisionError(
            f"--base: this shallow clone has no revision {base!r}: fetch it (git fetch --unshallow, or fetch-depth: 0 "
            "of actions/checkout)"
        )
    fetch = f"fetch it (git fetch origin {base}), or " if FETCHED.fullmatch(base) else ""
    raise RevisionError(
        f"--base: the repository has no revision {base!r}, and there is no such folder: {fetch}name another one"
    )


def _remove_worktree(top: Path, folder: Path) -> None:
    _run_git(top, "worktree", "remove", "--force", "--force", folder)


def _remove_abandoned(top: Path) -> None:
    """Remove the worktrees of processes that were killed: their lock is free."""
    for line in _run_git(top, "worktree", "list", "--porcelain").stdout.splitlines():
        folder = Path(line.removeprefix("worktree "))
        if not line.startswith("worktree ") or not folder.parent.name.startswith(PREFIX):
            continue
        with contextlib.suppress(OSError), (folder.parent / LOCK).open("rb") as lock:
            _hold(lock)
            _remove_worktree(top, folder)
            rmtree(folder.parent, ignore_errors=True)


def _hold(lock: IO[bytes]) -> None:
    """Lock the file of a worktree that is in use.

    Raises: OSError where another process has locked it.
    """
    # Imported here, because Windows, where stored runs can be compared, does not have it.
    import fcntl

    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _run_git(folder: Path, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run git in a folder, with further environment variables; Ctrl-C does not reach it.

    Raises: RevisionError where git is not installed, or names a path that is not UTF-8.
    """
    environment = {name: value for name, value in os.environ.items() if name not in LOCAL}
    environment |= {"LC_ALL": "C"} | variables
    try:
        return subprocess.run(
            ["git", *map(str, words)], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            encoding="utf-8", check=False, start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise RevisionError("git is needed to read versions, and is not installed: install it") from None
    except UnicodeDecodeError as error:
        path = os.fsencode(folder).decode(errors="backslashreplace")
        raise RevisionError(f"git names a path in {path} that is not UTF-8: rename it") from error


def _find_fault(errors: str) -> str:
    lines = [line.removeprefix("fatal: ") for line in errors.splitlines() if line.strip()]
    return lines[-1] if lines else "it gave no reason"
