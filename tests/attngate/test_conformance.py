"""Tests of what is kept of the conformance of a commit: it is used again only for the same files and conditions."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench.api.revisions import Version, describe_version, open_base
from attnbench.jobs.job import ConformJob
from attnbench.processes.sources import Sources
from attnbench.runner import Plan
from attngate.conformance import _find_key
from scratch_repository import SOURCE, Repository

SIDE = "mine.py:Attend @ somewhere"
PLANS = (Plan(case="a case", checks=("forward_parity",), missing=None, flop=1),)


def find_key(folder: Path, version: Version, plans: tuple[Plan, ...] = PLANS, **settings: Any) -> str | None:
    """Return the key of the results of ``mine.py`` in a folder."""
    sources = Sources(folder=str(folder), files=["mine.py"], digest="of the source")
    session: Any = SimpleNamespace(declared={SIDE: SimpleNamespace(sources=sources, operator="multihead")})
    return _find_key(session, ConformJob(suite="core", **settings), SIDE, version, plans)


def test_a_key_belongs_to_the_files_of_a_commit_and_to_the_conditions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worktree and another checkout of one commit have the same key; other files, cases or limits have another."""
    repository = Repository(tmp_path / "scratch")
    monkeypatch.chdir(repository.folder)
    with open_base("HEAD", repository.folder) as (folder, version):
        key = find_key(folder, version)
    with open_base(str(repository.folder), tmp_path) as (folder, there):
        assert (there.name, there.tree, there.changed) == ("scratch", version.tree, False)
        assert key is not None
        assert find_key(folder, there) == key
    others = [
        find_key(repository.folder, there, (replace(PLANS[0], case="another"),)),
        find_key(repository.folder, there, timeout_s=1.0),
        find_key(repository.folder, there, threads=1),
    ]
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    others.append(find_key(repository.folder, there))
    (repository.folder / "data.txt").write_text("read by the implementation")
    repository.git("add", "data.txt")
    repository.commit(SOURCE + "# changed\n")
    others.append(find_key(repository.folder, describe_version(repository.folder, "here")))
    assert None not in others
    assert len({key, *others}) == 1 + len(others)


def test_a_key_belongs_to_the_variables_that_the_code_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of such a variable may change what the code computes; that of another does not."""
    repository = Repository(tmp_path / "scratch")
    repository.commit(SOURCE + "FAST = 'MINE_FAST'  # a variable\n")
    version = describe_version(repository.folder, "here")
    keys = [find_key(repository.folder, version)]
    for name, value in (("MINE_OTHER", "1"), ("MINE_FAST", "1"), ("MINE_FAST", "2")):
        monkeypatch.setenv(name, value)
        keys.append(find_key(repository.folder, version))
    assert keys[0] == keys[1]
    assert len({None, *keys}) == 4


def test_files_of_no_commit_have_no_key(tmp_path: Path) -> None:
    """Changed, new and ignored files, and folders outside git, are checked each time."""
    repository = Repository(tmp_path / "scratch")
    repository.write(SOURCE + "# changed\n")
    assert find_key(repository.folder, describe_version(repository.folder, "here")) is None
    repository.git("checkout", "-q", "mine.py")
    (repository.folder / "new.py").write_text("")
    assert find_key(repository.folder, describe_version(repository.folder, "here")) is None
    (repository.folder / "new.py").unlink()
    repository.git("rm", "-q", "--cached", "mine.py")
    (repository.folder / ".gitignore").write_text("mine.py\n")
    repository.git("add", ".gitignore")
    repository.git("commit", "-q", "-m", "ignored")
    assert find_key(repository.folder, describe_version(repository.folder, "here")) is None
    (tmp_path / "mine.py").write_text(SOURCE)
    assert find_key(tmp_path, describe_version(tmp_path, "here")) is None
