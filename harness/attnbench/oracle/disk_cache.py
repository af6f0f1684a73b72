"""Files that outlive a run: results of the oracle that later runs and other processes use again.

The cache is never needed: a file that is missing or damaged counts as not there, and a folder that cannot be used is
reported once. Each file is written under a temporary name and renamed, so that several processes can use the cache at
the same time, and any of them can be killed at any time.
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

# Largest size of the cache in bytes: room for about 40 runs of the suite ``core`` with different keys, which take 51 MB
# each. If a process exceeds it, the files that were used longest ago are removed until KEPT_SHARE of it is left.
LIMIT_BYTES = 2**31
KEPT_SHARE = 0.9
# A result of more than this share of the limit is not stored, because it would take the room of too many others.
ENTRY_SHARE = 1 / 8
# Age in seconds at which the temporary file of a process that was killed is removed. Writing takes less than a second.
ABANDONED_S = 3600.0
# First word of every file. The number is raised if the form of the files changes.
FORMAT = b"attnbench-cache-1"
# Name of the file in a run's folder in which the oracle worker leaves the first fault of the cache for the runner.
CACHE_FAULT = "cache-fault"
_SUFFIX, _TEMPORARY = ".result", ".writing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Number and size of the files of a cache."""

    entries: int
    bytes: int


def find_folder() -> Path | None:
    """Return the folder of the cache, below $ATTNBENCH_CACHE, $XDG_CACHE_HOME/attnbench or ~/.cache/attnbench.

    None where neither variable is set and the user has no home directory.
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
    # A folder of its own, because everything in it may be removed.
    return place.absolute() / "oracle"


def ignore_fault(message: str) -> None:
    """Report a fault of the cache to nobody."""


class DiskCache:
    """A bounded cache of results by key, in a folder that only its owner can read.

    A key is a word of letters and digits. ``report`` gets a message at the first fault, and at no later one.
    """

    def __init__(
        self, folder: Path, *, report: Callable[[str], object] = ignore_fault, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self.folder = folder
        self._report = report
        self._limit_bytes = limit_bytes
        self._is_readable = self._is_writable = True
        # Bytes in the folder, as far as this process knows; None before its first write.
        self._bytes: int | None = None

    def read(self, key: str) -> bytearray | None:
        """Return the result that is stored under a key, or None; a damaged file is removed."""
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
            self._tell(f"{path} was damaged or has another version: it is removed and computed again")
        _try_quietly(path.unlink if result is None else lambda: os.utime(path))
        return result

    def write(self, key: str, result: bytes) -> None:
        """Store a result under a key; if that is not possible, the fault is reported."""
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
        """Return the number and the size of the results.

        Raises: OSError where the folder cannot be read.
        """
        found = self._list_files()
        return Usage(entries=len(found), bytes=sum(size for _, size, _ in found))

    def clear(self) -> Usage:
        """Remove all results, and return how many there were.

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
        # On a full disk, the report may fail too.
        _try_quietly(
            lambda: report(f"cache of expected values: {fault}. The run goes on; --no-cache leaves the cache out")
        )

    def _require_private(self) -> None:
        """Close the folder to other users, who could otherwise decide what is right.

        Raises: OSError; FileNotFoundError where there is no folder.
        """
        found = self.folder.stat()
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user")
        if found.st_mode & 0o077:
            self.folder.chmod(0o700)

    def _store(self, path: Path, content: bytes) -> int:
        """Write a file under a temporary name and rename it; return its size.

        Raises: OSError.
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
        """Remove the files that were used longest ago until ``KEPT_SHARE`` of the limit is left; return what is left.

        Raises: OSError.
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
        """Return time of last use, size and path of each result; remove temporary files of killed processes.

        Raises: OSError.
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
    """Return the content of a file: one line with the format, the length and the digest, and then the result."""
    return b"%s %d %s\n" % (FORMAT, len(result), _digest(key, result)) + result


def _unwrap(key: str, content: bytes) -> bytearray | None:
    """Return the result in the content of a file, or None if the file is damaged or has another version."""
    head, _, _ = content[:256].partition(b"\n")
    result = memoryview(content)[len(head) + 1 :]
    return bytearray(result) if head == b"%s %d %s" % (FORMAT, len(result), _digest(key, result)) else None


def _digest(key: str, result: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(key.encode())
    digest.update(result)
    return digest.hexdigest().encode()


def _try_quietly(action: Callable[[], object]) -> None:
    """Do what need not succeed: in a folder that cannot be written, times and damaged files stay as they are."""
    try:
        action()
    except OSError:
        return
