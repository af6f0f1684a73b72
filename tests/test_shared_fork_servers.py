"""Tests of the fork servers that tests share."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

import pytest

import shared_fork_servers
from attnbench.processes.fork_server import ForkServer
from shared_fork_servers import SharedForkServers

MODULES = ["json"]
# Seconds that the start of a server leaves to a second thread, which is to wait.
LEFT_S = 0.2


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedForkServers]:
    """Fork servers that end with the test."""
    made = SharedForkServers(tmp_path)
    yield made
    made.end()


def test_threads_that_ask_at_once_get_one_server(
    shared: SharedForkServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that asks while a server starts gets this server: a second one would never be ended."""
    started: list[ForkServer] = []
    own = shared_fork_servers._KeptForkServer

    def ask() -> ForkServer:
        return shared(MODULES, log=tmp_path / "log", environment={})

    with ThreadPoolExecutor() as others:

        class SlowlyStarted(own):  # type: ignore[misc, valid-type]
            """A server during whose start another thread asks for a server."""

            def __init__(self, *arguments: object, **named: object) -> None:
                super().__init__(*arguments, **named)
                started.append(self)
                if len(started) == 1:
                    other.append(others.submit(ask))
                    with pytest.raises(FutureTimeoutError):
                        other[0].result(timeout=LEFT_S)

        other: list = []
        monkeypatch.setattr(shared_fork_servers, "_KeptForkServer", SlowlyStarted)
        server = ask()
        assert other[0].result() is server
    assert started == [server]


def test_a_server_that_has_ended_is_replaced(shared: SharedForkServers, tmp_path: Path) -> None:
    """If the process of a kept server has ended, its connection is closed, and another server is started."""
    first = shared(MODULES, log=tmp_path / "log", environment={})
    first._process.kill()
    first._process.wait()
    second = shared(MODULES, log=tmp_path / "log", environment={})
    assert second is not first
    assert first._connection.fileno() == -1
