"""Cache on disk: results of the oracle, which later runs and other processes use again.

A run also works without the cache: a missing or damaged file is treated as absent, and a folder that cannot be used is
reported once. Each file is written under a temporary name and then renamed. Several processes can therefore use the
cache at the same time, and a process that is killed leaves no incomplete result.
"""

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CACHE_FAULT", "LIMIT_BYTES", "DiskCache", "Usage", "find_folder", "ignore_fault"]

# Largest size of the cache in bytes: room for about 20 runs of the suite ``core`` that share no entry, because
# their versions of torch differ, for example. The entries of one run take 100 MB.
LIMIT_BYTES = 2**31
# A cache that exceeds its limit is reduced to this fraction of the limit: the least recently used files are removed.
KEPT_SHARE = 0.9
# Largest size of a result, as a fraction of the limit of the cache. A larger result is not stored, because it would
# displace too many other results.
ENTRY_SHARE = 1 / 8
# Age in seconds from which a temporary file is removed. Its process must have been killed, because writing a file takes
# less than a second.
ABANDONED_S = 3600.0
# First word of every file of the cache. The number at its end is increased if the format of the files changes.
FORMAT = b"attnbench-cache-1"
# Name of a file in the folder of a run. The oracle worker writes the first fault of the cache to this file, and the
# runner reports it.
CACHE_FAULT = "cache-fault"
_SUFFIX, _TEMPORARY = ".result", ".writing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Number of the files of a cache, and their total size in bytes."""

    entries: int
    bytes: int


def find_folder() -> Path | None:
    """Return the folder of the cache: the subfolder ``oracle`` of the folder that the environment determines.

    This folder is $ATTNBENCH_CACHE, $XDG_CACHE_HOME/attnbench or ~/.cache/attnbench. The first of these three folders
    that is defined is used. The result is None if neither variable is set and the user has no home directory.
    """
    if own := os.environ.get("ATTNBENCH_CACHE"):
        place = Path(own)
    elif shared := os.environ.get("XDG_CACHE_HOME"):
        place = Path(shared) / "attnbench"
    else:
        try:
            place = Path.home() / ".cache" / "attnbench"
        except RuntimeError:
            return None
    # The cache has a subfolder to itself, because every file in this subfolder may be removed.
    return place.absolute() / "oracle"


def ignore_fault(message: str) -> None:
    """Ignore the message about a fault of the cache."""


class DiskCache:
    """A cache of results by key, with a limited total size, in a folder that only its owner can read.

    A key is a word of letters and digits. ``report`` is called with a message at the first fault of the cache, and at
    no later fault.
    """

    def __init__(
        self, folder: Path, *, report: Callable[[str], object] = ignore_fault, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self.folder = folder
        self._report = report
        self._limit_bytes = limit_bytes
        self._is_readable = self._is_writable = True
        # Total size in bytes of the results in the folder, as far as this process knows; None until it is measured.
        self._bytes: int | None = None

    def read(self, key: str) -> bytearray | None:
        """Return the result that is stored under a key, or None if no valid result is stored; remove a damaged file."""
        path = self._locate(key)
        if not self._is_readable:
            return None
        try:
            self._require_private()
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._is_readable = False
            self._tell(f"{self.folder} cannot be read: {error.strerror}")
            return None
        result = _unwrap(key, content)
        if result is None:
            self._tell(f"{path} was damaged or has another version: the file is removed, the result is computed again")
        _try_quietly(path.unlink if result is None else lambda: os.utime(path))
        return result

    def write(self, key: str, result: bytes) -> None:
        """Store a result under a key, unless the result is larger than ``ENTRY_SHARE`` of the limit.

        An error while writing is reported, not raised.
        """
        if not self._is_writable or len(result) > ENTRY_SHARE * self._limit_bytes:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._require_private()
            if self._bytes is None:
                self._bytes = self.measure().bytes
            self._bytes += self._store(self._locate(key), _wrap(key, result))
            if self._bytes > self._limit_bytes:
                self._bytes = self._evict()
        except OSError as error:
            self._is_writable = False
            self._tell(f"nothing more is stored in {self.folder}: {error.strerror}")

    def measure(self) -> Usage:
        """Return the number and the total size of the stored results.

        Raises: OSError where the folder cannot be read.
        """
        found = self._list_files()
        return Usage(entries=len(found), bytes=sum(size for _, size, _ in found))

    def clear(self) -> Usage:
        """Remove all results, and return their number and total size.

        Raises: OSError where a file cannot be removed.
        """
        removed = self.measure()
        for _, _, path in self._list_files():
            path.unlink(missing_ok=True)
        self._bytes = None
        return removed

    def _locate(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _tell(self, fault: str) -> None:
        report, self._report = self._report, ignore_fault
        # ``report`` may write to a file, which fails on a full disk.
        _try_quietly(
            lambda: report(f"cache of expected values: {fault}. The run continues; --no-cache disables the cache")
        )

    def _require_private(self) -> None:
        """Deny other users access to the folder, because changed expected values could let wrong results pass.

        Raises: FileNotFoundError where there is no folder; OSError where another user owns the folder.
        """
        found = self.folder.stat()
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "the folder belongs to another user")
        if found.st_mode & 0o077:
            self.folder.chmod(0o700)

    def _store(self, path: Path, content: bytes) -> int:
        """Write a file under a temporary name and rename it; return its size in bytes.

        Raises: OSError if the file cannot be written.
        """
        temporary = self.folder / f"{secrets.token_hex(8)}{_TEMPORARY}"
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        except BaseException:
            _try_quietly(temporary.unlink)
            raise
        return len(content)

    def _evict(self) -> int:
        """Remove the least recently used files until ``KEPT_SHARE`` of the limit remains; return the remaining bytes.

        Raises: OSError if a file cannot be removed.
        """
        found = sorted(self._list_files())
        left = sum(size for _, size, _ in found)
        for _, size, path in found:
            if left <= KEPT_SHARE * self._limit_bytes:
                break
            path.unlink(missing_ok=True)
            left -= size
        return left

    def _list_files(self) -> list[tuple[float, int, Path]]:
        """Return the time of last use, the size in bytes and the path of each result.

        Temporary files of killed processes are removed.

        Raises: OSError if the folder cannot be read.
        """
        found = []
        try:
            entries = list(os.scandir(self.folder))
        except FileNotFoundError:
            return []
        for entry in entries:
            try:
                state = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # another process has removed or renamed the file
                continue
            if entry.name.endswith(_SUFFIX):
                found.append((state.st_mtime, state.st_size, Path(entry.path)))
            elif entry.name.endswith(_TEMPORARY) and state.st_mtime < time.time() - ABANDONED_S:
                _try_quietly(Path(entry.path).unlink)
        return found


def _wrap(key: str, result: bytes) -> bytes:
    """Return the file content for a result: one line with the format, the length and the digest, then the result."""
    return b"%s %d %s\n" % (FORMAT, len(result), _digest(key, result)) + result


def _unwrap(key: str, content: bytes) -> bytearray | None:
    """Return the result in the content of a file, or None if the file is damaged or has another format version."""
    head, _, _ = content[:256].partition(b"\n")
    result = memoryview(content)[len(head) + 1 :]
    return bytearray(result) if head == b"%s %d %s" % (FORMAT, len(result), _digest(key, result)) else None


def _digest(key: str, result: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(key.encode())
    digest.update(result)
    return digest.hexdigest().encode()


def _try_quietly(action: Callable[[], object]) -> None:
    """Call ``action``, and ignore an OSError.

    In a folder that cannot be written, file times stay unchanged and damaged files are not removed.
    """
    try:
        action()
    except OSError:
        return
