"""Fork servers that the tests of a process share: to import torch anew for each run of a test takes seconds."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

from attnbench.processes.fork_server import ForkServer

__all__ = ["SharedForkServers"]

# Most servers that are kept; each holds 300 MB. Tests that set other variables have other servers.
MOST = 5


class SharedForkServers:
    """Gives a session the fork server of an earlier session that has the same modules and environment.

    A session calls an instance as it would call the class ``ForkServer``.
    """

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self._kept: list[_KeptForkServer] = []
        # Several sessions may ask at once. Without the lock, each could start a server, and all but one of these would
        # never be ended.
        self._choosing = Lock()

    def __call__(self, modules: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> ForkServer:
        """Return a server that is kept, or start one."""
        del log  # it would end with the session
        with self._choosing:
            return self._choose(modules, environment)

    def _choose(self, modules: Sequence[str], environment: Mapping[str, str]) -> ForkServer:
        running = [one for one in self._kept if one.is_running]
        for ended in set(self._kept) - set(running):
            ended.end()
        self._kept = running
        found = [one for one in self._kept if one.starts_alike(modules, environment)]
        server = found[0] if found else _KeptForkServer(modules, log=self._log, environment=environment)
        # The server that was used last is the last one.
        self._kept = [one for one in self._kept if one is not server] + [server]
        while len(self._kept) > MOST:
            self._kept.pop(0).end()
        return server

    def end(self) -> None:
        """End all servers."""
        while self._kept:
            self._kept.pop().end()


class _KeptForkServer(ForkServer):
    """A fork server that goes on when a session closes it."""

    def __init__(self, modules: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> None:
        super().__init__(modules, log=log, environment=environment)
        self._modules, self._cores = tuple(modules), os.sched_getaffinity(0)

    @property
    def is_running(self) -> bool:
        """Whether the server can still fork."""
        return self._process.poll() is None

    def starts_alike(self, modules: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether a server that this thread starts now would have the same modules, environment and cores."""
        return self._modules == tuple(modules) and self._cores == os.sched_getaffinity(0) and self.gives(environment)

    def close(self) -> None:
        """Do nothing: another session may need the server."""

    def end(self) -> None:
        """End the server."""
        super().close()
