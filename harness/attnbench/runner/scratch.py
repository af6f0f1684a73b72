"""A run's folder for tensors, and the folders that killed runs left behind."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["Scratch"]

PREFIX = "attnbench-"
# File of a folder that its run holds locked for as long as it lives, however it ends.
LOCK = "lock"


class Scratch:
    """A new folder, once those of runs that live no more are removed."""

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # It takes its name once it is locked: nobody else sees it unlocked while this run lives.
        unnamed = self.path / f"{LOCK}.new"
        self._lock = os.open(unnamed, os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / LOCK)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(folder: Path) -> None:
    """Remove what killed runs left in a folder; what cannot be removed stays."""
    for path in folder.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(lock)
