"""The temporary folder of a run, and the removal of folders that killed runs left behind."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["Scratch"]

PREFIX = "attnbench-"
# Name of the lock file in the folder. The run keeps this file locked. The system releases the lock when the process of
# the run ends, even if the process is killed.
LOCK = "lock"


class Scratch:
    """A new temporary folder; its creation removes the folders that killed runs left behind."""

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # The lock file gets its final name after it is locked. Otherwise another run could find an unlocked lock file,
        # and remove the folder.
        unnamed = self.path / f"{LOCK}.new"
        self._lock = os.open(unnamed, os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / LOCK)

    def remove(self) -> None:
        """Remove the folder and its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(folder: Path) -> None:
    """Remove the folders that killed runs left in ``folder``; a folder that cannot be removed stays."""
    for path in folder.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(lock)
