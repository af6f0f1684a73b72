"""Tests of the cache on disk: what is read is what was written, or nothing, whatever happens to the files."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attnbench.oracle.disk_cache import ABANDONED_S, DiskCache, Usage, find_folder

# Writes results of 1 MB under one key until it is killed, and tells when it has begun.
WRITER = """
import sys
from pathlib import Path
from attnbench.oracle.disk_cache import DiskCache
cache = DiskCache(Path(sys.argv[1]))
for number in range(10**9):
    cache.write("key", bytes([number % 256]) * 2**20)
    if number == 3:
        print("begun", flush=True)
"""


@pytest.fixture
def told() -> list[str]:
    """Messages that a cache has reported."""
    return []


@pytest.fixture
def cache(tmp_path: Path, told: list[str]) -> DiskCache:
    """Return an empty cache of at most 10,000 bytes."""
    return DiskCache(tmp_path / "cache", report=told.append, limit_bytes=10_000)


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let the system refuse to write files of more than 100 bytes, as it does where a quota is used up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_results_are_found_by_their_key(cache: DiskCache, told: list[str]) -> None:
    """A result is read as it was written, also by another process's cache; another key has none."""
    assert cache.read("one") is None
    cache.write("one", b"result")
    assert cache.read("one") == b"result"
    assert DiskCache(cache.folder).read("one") == b"result"
    assert cache.read("two") is None
    assert told == []


def test_the_folder_is_private(cache: DiskCache) -> None:
    """Only the user can open the folder, even if it was open to others before."""
    cache.write("one", b"result")
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    cache.folder.chmod(0o777)
    cache.read("one")
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def _truncate(content: bytes) -> bytes:
    return content[:-1]


def _change_a_bit(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def _change_version(content: bytes) -> bytes:
    return content.replace(b"attnbench-cache-1", b"attnbench-cache-0")


@pytest.mark.parametrize(
    "damage", [_truncate, _change_a_bit, _change_version, lambda _: b"", lambda content: content + b"more"]
)
def test_a_damaged_file_counts_as_missing(cache: DiskCache, told: list[str], damage: Callable[[bytes], bytes]) -> None:
    """A file whose length, digest or version is wrong is removed and reported, and can be written again."""
    cache.write("one", b"result")
    (path,) = cache.folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert cache.read("one") is None
    assert not path.exists()
    assert [f"{path} was damaged or has another version" in message for message in told] == [True]
    cache.write("one", b"result")
    assert cache.read("one") == b"result"


def test_a_file_under_another_key_counts_as_damaged(cache: DiskCache) -> None:
    """A file that was renamed to another key is not the result of this key."""
    cache.write("one", b"result")
    (path,) = cache.folder.iterdir()
    path.rename(path.with_name(path.name.replace("one", "two")))
    assert cache.read("two") is None


def test_the_least_recently_used_results_are_removed(cache: DiskCache) -> None:
    """Beyond the limit the results go whose last use, reading or writing, is longest ago: down to nine tenths."""
    for number in range(9):
        cache.write(f"k{number}", bytes(1000))
        os.utime(cache.folder / f"k{number}.result", (number, number))
    cache.read("k0")
    cache.write("last", bytes(1000))
    assert [number for number in range(9) if cache.read(f"k{number}") is None] == [1, 2]
    assert cache.read("last") is not None
    assert cache.measure().bytes <= 9000


def test_a_result_that_would_displace_many_is_not_stored(cache: DiskCache, told: list[str]) -> None:
    """A result of more than an eighth of the limit is not stored; that is no fault."""
    cache.write("one", bytes(1251))
    assert cache.measure() == Usage(entries=0, bytes=0)
    assert told == []


def test_a_full_disk_is_reported_once(cache: DiskCache, told: list[str], small_files: None) -> None:
    """If the system refuses to write, this is reported once, no partial file is left, and reading goes on."""
    cache.write("one", b"")
    cache.write("two", bytes(1000))
    cache.write("three", bytes(1000))
    assert [f"nothing more is stored in {cache.folder}: File too large" in message for message in told] == [True]
    assert "--no-cache" in told[0]
    assert [path.name for path in cache.folder.iterdir()] == ["one.result"]
    assert cache.read("one") == b""


def test_a_folder_that_cannot_be_used_is_reported_once(tmp_path: Path, told: list[str]) -> None:
    """Where the folder is a file, every result is missing, and only the first of all faults is reported."""
    (tmp_path / "file").touch()
    cache = DiskCache(tmp_path / "file", report=told.append)
    assert cache.read("one") is None
    cache.write("one", b"result")
    assert cache.read("one") is None
    assert [
        message.partition(": ")[2].startswith(f"{tmp_path}/file cannot be read: Not a dir") for message in told
    ] == [True]


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give a folder to another user")
def test_a_folder_of_another_user_is_not_used(cache: DiskCache, told: list[str]) -> None:
    """Results that another user could have written are not read."""
    cache.write("one", b"result")
    os.chown(cache.folder, 12345, -1)
    assert cache.read("one") is None
    assert "the folder belongs to another user" in told[0]


def test_a_report_that_fails_is_no_fault(tmp_path: Path) -> None:
    """If the report itself cannot be written, the run goes on."""
    (tmp_path / "file").touch()
    cache = DiskCache(tmp_path / "file", report=(tmp_path / "missing" / "report").write_text)
    assert cache.read("one") is None


def test_a_killed_writer_leaves_whole_results_only(tmp_path: Path) -> None:
    """After ``kill -9`` the result is one that was written as a whole; the temporary file goes when it is old."""
    folder = tmp_path / "cache"
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"begun\n"
            writer.send_signal(signal.SIGKILL)
        result = DiskCache(folder).read("key")
        assert result is not None
        assert len(result) == 2**20
        assert len(set(result)) == 1
    (folder / "left.writing").touch()
    long_ago = time.time() - ABANDONED_S - 1
    for path in folder.glob("*.writing"):
        os.utime(path, (long_ago, long_ago))
    DiskCache(folder).measure()
    assert [path.name for path in folder.iterdir()] == ["key.result"]


def test_processes_share_a_cache(tmp_path: Path) -> None:
    """While two processes write a key again and again, every result that a third one reads is whole."""
    told: list[str] = []
    cache = DiskCache(tmp_path / "cache", report=told.append)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(cache.folder)], stdout=subprocess.PIPE) for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    results = [cache.read("key") for _ in range(100)]
    for writer in writers:
        writer.kill()
        writer.communicate()
    assert all(result is not None and len(set(result)) == 1 for result in results)
    assert told == []


def test_clear_removes_results_and_nothing_else(cache: DiskCache) -> None:
    """``clear`` tells how much it removed, and leaves files that the cache has not written."""
    cache.write("one", b"result")
    (cache.folder / "other").touch()
    measured = cache.measure()
    assert cache.clear() == measured
    assert measured.entries == 1
    assert cache.measure() == Usage(entries=0, bytes=0)
    assert [path.name for path in cache.folder.iterdir()] == ["other"]


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"ATTNBENCH_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a/oracle"),
        ({"ATTNBENCH_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/attnbench/oracle"),
        ({"XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/attnbench/oracle"),
    ],
)
def test_place_of_the_cache(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str) -> None:
    """$ATTNBENCH_CACHE comes before $XDG_CACHE_HOME and the home directory; an empty variable counts as unset."""
    for name in ("ATTNBENCH_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_folder() == Path(folder)
