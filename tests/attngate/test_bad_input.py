"""Tests of what a gate refuses, in one line with the remedy, and of the worktrees that it removes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from attnbench.api.revisions import PREFIX, describe_version, open_base
from attngate.command import command
from attngate.gating import make_pairs
from commands import START, refuse_command
from scratch_repository import SOURCE, Repository

refuse = partial(refuse_command, command)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A scratch repository, which is the current folder; worktrees are made below a folder of the test."""
    made = Repository(tmp_path / "scratch")
    monkeypatch.chdir(made.folder)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    yield made
    assert made.git("worktree", "list").count("\n") == 0
    assert [*(tmp_path / "temporary").glob(f"{PREFIX}*")] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mine.py", "--base", "nowhere"), "--base: the repository has no revision 'nowhere', and there is no such"),
        (("mine.py", "--base=--force"), "--base: the repository has no revision '--force', and there is no such"),
        (("mine.py", "--base", "HEAD~9"), "no revision 'HEAD~9', and there is no such folder: name another one"),
        (("mine.py", "--base", "n" * 300), "--base: the repository has no revision 'nnn"),
        (("mine.py", "--base", ""), "--base is empty: name a revision such as HEAD, or the folder of another checkout"),
        (("mine.py", "--base", "."), "--base: '.' is the folder of the new side: name another checkout, or a revision"),
        (("absent.attention:attend", "--base", "HEAD"), "nothing named 'absent' can be imported; install it, or use"),
        (("--base", "HEAD"), "IMPLEMENTATION is missing, and no pyproject.toml of the repository has entry points"),
        (("other.py:attend", "--base", "HEAD"), "has no other.py, the source of 'other.py:attend'; leave out "
         "'other.py:attend', or name another base"),
        (("mine.py", "--base", "HEAD", "--slower", "2"), "needs per cent above 0 and below 100, got '2'; for example"),
        (("mine.py", "--base", "HEAD", "--bigger", "-1"), "needs a number of bytes, got '-1'; for example 4KiB"),
        (("mine.py", "--base", "HEAD", "--fail-on", "slow"), "needs words of wrong,slower,bigger, separated by"),
        (("mine.py", "--base", "HEAD", "--json", "a", "--markdown", "a"), "name the same file 'a'"),
    ],
)  # fmt: skip
def test_usage_errors_name_the_remedy(repository: Repository, words: tuple[str, ...], message: str) -> None:
    """Each is one line, and no worktree is left."""
    (repository.folder / "other.py").write_text("def attend(q, k, v): ...\n")
    assert message in refuse(*words)


def test_a_folder_with_a_short_name_changes_no_other_word(repository: Repository) -> None:
    """The name of the base stands for the folder, and not for each of its letters in the message."""
    (repository.folder / "m").mkdir()
    message = refuse("mine.py:Attend", "--base", "m")
    assert "has no mine.py, the source of 'mine.py:Attend'; leave out 'mine.py:Attend', or name another base" in message


def test_a_folder_outside_git_has_no_revisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says that a folder can be named."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SOURCE)
    assert "the current folder is in no git repository: name a folder" in refuse("mine.py", "--base", "main")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, names of folders must be Unicode")
def test_a_folder_whose_name_is_not_utf8_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What git says of it cannot be decoded."""
    place = os.fsencode(Repository(tmp_path / "scratch").folder)
    os.rename(place, place + b"\xe4")  # noqa: PTH104
    monkeypatch.chdir(os.fsdecode(place + b"\xe4"))
    assert r"/scratch\xe4 that is not UTF-8: rename it" in refuse("mine.py", "--base", "HEAD")


def test_a_shallow_clone_is_told_how_to_fetch(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone with the last commit alone lacks the one before."""
    repository.change("is_causal=False", "is_causal=None")
    clone = repository.folder.parent / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", repository.folder.as_uri(), clone], check=True)
    monkeypatch.chdir(clone)
    assert "this shallow clone has no revision 'HEAD~1': fetch it (git fetch --unshallow" in refuse(
        "mine.py", "--base", "HEAD~1"
    )


@pytest.mark.parametrize("folder", ["", "src"])
def test_a_module_that_the_base_lacks_is_named(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """The package is there and the module is new, as where a first pull request declares an implementation."""
    package = repository.folder / folder / f"declared_{len(folder)}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    repository.git("add", ".")
    repository.git("commit", "-q", "-m", "a package")
    (package / "attention.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(package.parent))
    name = f"{package.name}.attention:Attend"
    message = refuse(name, "--base", "HEAD")
    assert re.search(
        rf"^--base: HEAD .* has no {package.name}\.attention, the module of '{name}'; leave it out,", message
    )


@pytest.mark.extended
def test_a_base_that_cannot_be_imported_is_one_line(repository: Repository) -> None:
    """The message names the revision, not the folder of its worktree, and how a base is built."""
    repository.commit(f"import extension_that_is_not_built\n{SOURCE}")
    repository.commit(SOURCE)
    message = refuse("mine.py", "--base", "HEAD~1")
    assert re.match(r"--base: HEAD~1 \(\w+\) cannot be used: .*No module named 'extension_that_is_not_built'", message)
    assert "; name another base, or give each side an environment of its own: say how it is built (--build" in message
    assert PREFIX not in message


def test_the_checkout_and_the_index_stay_as_they_are(repository: Repository) -> None:
    """Changes, staged or not, and new files stay; a hook of the repository is not run; its variables are ignored."""
    hook = repository.folder / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    repository.write(SOURCE + "# staged\n")
    repository.git("add", "mine.py")
    repository.write(SOURCE + "# changed\n")
    before = repository.git("status", "--porcelain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_INDEX_FILE", "elsewhere")
        with open_base("HEAD", repository.folder) as (folder, version):
            assert (folder / "mine.py").read_text() == SOURCE
            assert not (folder / "ran").exists()
            assert (version.changed, len(version.tree)) == (False, 40)
    assert before == repository.git("status", "--porcelain") == "MM mine.py"
    assert describe_version(repository.folder, "the working tree").changed


def hold_two(repository: Repository, error: type[BaseException]) -> None:
    """Hold two worktrees of one revision, as two gates do, until an error."""
    with open_base("main", repository.folder) as (one, _), open_base("main", repository.folder) as (other, _):
        assert repository.git("worktree", "list").count("\n") == 2
        assert one != other
        assert (one / "mine.py").read_text() == (other / "mine.py").read_text() == SOURCE
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_worktrees_are_removed_after_errors_and_interrupts(repository: Repository, error: type[BaseException]) -> None:
    """Whatever ends a gate, its worktree is gone; two at once in one checkout have a worktree each."""
    with pytest.raises(error):
        hold_two(repository, error)


def test_the_next_gate_removes_the_worktree_of_a_killed_one(repository: Repository) -> None:
    """A process that was killed could not remove its worktree, and holds its lock no more."""
    program = (
        "import os, pathlib, attnbench.api.revisions as r\n"
        "with r.open_base('HEAD', pathlib.Path.cwd()): os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program], check=False, env={**os.environ, "TMPDIR": str(tempfile.tempdir)}
    )
    assert killed.returncode == -9
    assert repository.git("worktree", "list").count("\n") == 1
    with contextlib.ExitStack() as stack:
        stack.enter_context(open_base("HEAD", repository.folder))
        assert repository.git("worktree", "list").count("\n") == 1


@pytest.mark.extended
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_gate_removes_its_worktree(repository: Repository, sent: signal.Signals) -> None:
    """Ctrl-C, the end of a job in a CI and the closing of a terminal end in one line and leave no worktree."""
    begun = subprocess.Popen(
        [*START, "gate", "mine.py", "--base", "HEAD"], env={**os.environ, "TMPDIR": str(tempfile.tempdir)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert begun.stderr is not None
    for _ in begun.stderr:  # the first line of progress: a side is checked
        break
    assert repository.git("worktree", "list").count("\n") == 1
    begun.send_signal(sent)
    *_, last = begun.communicate(timeout=120)[1].splitlines()
    assert (begun.returncode, last) == (130, "attnbench: interrupted")


def test_a_file_in_a_folder_of_the_repository_has_its_counterpart(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate may run in any folder of the repository; results have the name of the file as it was given."""
    place = repository.folder / "kernels"
    place.mkdir()
    (place / "mine.py").write_text(SOURCE)
    repository.git("add", "kernels")
    repository.git("commit", "-q", "-m", "a folder")
    monkeypatch.chdir(place)
    with open_base("HEAD", place) as (folder, version):
        (pair,) = make_pairs(["mine.py:Attend"], folder, version)
        assert pair.name == "mine.py:Attend"
        assert pair.sides == (f"mine.py:Attend @ {folder}", f"mine.py:Attend @ {repository.folder}")
