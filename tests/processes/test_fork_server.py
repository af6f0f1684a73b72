"""Tests of the fork server: workers have what it imported, and the environment of a new process."""

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from attnbench.processes.fork_server import ForkedProcess, ForkServer, _Fork
from attnbench.processes.request import Request
from attnbench.processes.rpc import Child, ChildDied
from attnbench.records.outcome_facts import Crashed

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux only")

# Two modules: one that takes a note each time it is imported, and a worker that imports it.
NOTED = """
import os

with open("notes", "a") as notes:
    notes.write(f"{os.getpid()}\\n")
"""
WORKER = """
import os
import sys

import noted
from attnbench.processes.request import Request
from attnbench.processes.rpc import serve


class Tell(Request[dict[str, object]], frozen=True, kw_only=True):
    pass


def tell(request):
    own = sys.modules["__main__"]
    names = {"module": own.__spec__.name, "variable": os.environ.get("CHOSEN"), "folder": os.getcwd()}
    return names | {"pid": os.getpid(), "first": sys.path[0]}


if __name__ == "__main__":
    serve([Tell.answered_by(tell)], int(sys.argv[1]))
"""


class Tell(Request[dict[str, object]], frozen=True, kw_only=True):
    """The request of the same name in WORKER: describe the process."""


def ended(fact: Crashed) -> Callable[[ChildDied], bool]:
    """Return the check of an error that says how a child ended."""
    return lambda died: died.fact == fact


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Environment variables of the worker; the current folder has its modules."""
    (tmp_path / "noted.py").write_text(NOTED)
    (tmp_path / "some_worker.py").write_text(WORKER)
    monkeypatch.chdir(tmp_path)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]), "CHOSEN": "one"}


@pytest.fixture
def server(tmp_path: Path, variables: dict[str, str]) -> Iterator[ForkServer]:
    """Fork server that has imported the worker's modules."""
    started = ForkServer(["some_worker"], log=tmp_path / "server_log", environment=variables)
    yield started
    started.close()


def test_workers_have_the_modules_that_the_server_imported(
    tmp_path: Path, server: ForkServer, variables: dict[str, str]
) -> None:
    """A module is imported once, by the server; each worker is a process of its own, which runs its module."""
    told = []
    for _ in range(2):
        with Child("some_worker", log=tmp_path / "log", environment=variables, fork_server=server) as child:
            told.append(child.ask(Tell()))
    assert len((tmp_path / "notes").read_text().split()) == 1
    assert len({answer["pid"] for answer in told}) == 2
    assert [(answer["module"], answer["variable"]) for answer in told] == 2 * [("some_worker", "one")]


def test_a_worker_of_another_environment_is_a_new_process(
    tmp_path: Path, server: ForkServer, variables: dict[str, str]
) -> None:
    """A worker always has the environment of a new process, whatever the server has."""
    changed = variables | {"CHOSEN": "two"}
    with Child("some_worker", log=tmp_path / "log", environment=changed, fork_server=server) as child:
        assert child.ask(Tell())["variable"] == "two"
    assert server.gives(variables)
    assert not server.gives(changed)


def test_a_worker_has_the_present_folder_and_imports_from_it(
    tmp_path: Path, server: ForkServer, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked worker has the working directory of a new process, and looks for modules there first."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with Child("some_worker", log=tmp_path / "log", environment=variables, fork_server=server) as child:
        told = child.ask(Tell())
    assert (told["folder"], told["first"]) == (str(tmp_path / "other"), str(tmp_path / "other"))
    assert len((tmp_path / "notes").read_text().split()) == 1


def test_in_a_folder_that_was_removed_no_worker_is_forked(
    tmp_path: Path, server: ForkServer, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can change into a working directory that was removed, and only a new process inherits it."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert not server.gives(variables)


def test_a_module_that_cannot_be_imported_is_the_worker_s_error(tmp_path: Path, variables: dict[str, str]) -> None:
    """The server goes on if an import fails; the worker fails in the same way, and its error says why."""
    (tmp_path / "some_worker.py").write_text("import nonsense_that_is_missing")
    server = ForkServer(["some_worker"], log=tmp_path / "server_log", environment=variables)
    child = Child("some_worker", log=tmp_path / "log", environment=variables, fork_server=server)
    with (
        child,
        pytest.raises(
            ChildDied,
            check=lambda died: died.fact.text.startswith(
                "ModuleNotFoundError: No module named 'nonsense_that_is_missing'"
            ),
        ),
    ):
        child.ask(Tell())
    server.close()


def test_a_server_that_was_killed_is_named(tmp_path: Path, server: ForkServer, variables: dict[str, str]) -> None:
    """If the server dies before it forks, the error says so; after that, the system's error is given."""
    os.kill(server._process.pid, signal.SIGSTOP)
    child = Child("some_worker", log=tmp_path / "log", environment=variables, fork_server=server)
    os.kill(server._process.pid, signal.SIGKILL)
    with (
        child,
        pytest.raises(ChildDied, check=ended(Crashed(how="start", text="the fork server has ended"))),
    ):
        child.ask(Tell())
    server._process.wait()
    with pytest.raises(ChildDied, check=lambda died: died.fact.how == "start"):
        Child("some_worker", log=tmp_path / "log", environment=variables, fork_server=server)


def test_a_child_that_is_killed_before_it_was_forked_ends(
    tmp_path: Path, server: ForkServer, variables: dict[str, str]
) -> None:
    """Killing a child does not wait for the server; the server forks the next child as if nothing had been."""
    os.kill(server._process.pid, signal.SIGSTOP)
    Child("some_worker", log=tmp_path / "log", environment=variables, fork_server=server).kill()
    os.kill(server._process.pid, signal.SIGCONT)
    with Child("some_worker", log=tmp_path / "log", environment=variables, fork_server=server) as child:
        assert child.ask(Tell())["module"] == "some_worker"


def test_a_fork_that_the_system_refuses_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system refuses a fork, the error gives the system's reason, and the server goes on."""

    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    ours, theirs = socket.socketpair()
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    with ours, theirs:
        server = _Fork(theirs)
        assert not server._fork("0" * 16, str(tmp_path), [*descriptors, os.dup(theirs.fileno())])
        server._leave()
        with pytest.raises(ChildDied, check=ended(Crashed(how="start", text="Resource temporarily unavailable"))):
            ForkedProcess(ours).wait()


def test_a_process_that_one_thread_kills_may_be_awaited_by_others() -> None:
    """Killing a process ends the waiting of other threads, which get the same exit code."""
    ours, theirs = socket.socketpair()
    process = ForkedProcess(ours)
    with theirs, ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(process.wait) for _ in range(3)]
        while not all(one.running() for one in waiting):
            pass
        threads.submit(process.kill).result(10)
        assert [one.result(10) for one in waiting] == 3 * [-signal.SIGKILL]


def test_a_number_is_read_by_one_thread() -> None:
    """If several threads wait, one reads the process's id and then the exit code, and all return this code.

    The one that reads the code closes the connection, for which the others may be about to wait: about one of a hundred
    attempts meets this moment.
    """
    for _ in range(500):
        ours, theirs = socket.socketpair()
        process = ForkedProcess(ours)
        with theirs, ThreadPoolExecutor(3) as threads:
            waiting = [threads.submit(process.wait) for _ in range(3)]
            theirs.sendall(struct.pack("=i", os.getpid()))
            theirs.sendall(struct.pack("=i", 7))
            assert [one.result(60) for one in waiting] == [7, 7, 7]


def test_a_server_ends_with_its_parent(tmp_path: Path) -> None:
    """The server ends when its connection is closed, so also if its parent is killed."""
    program = (
        "import os, signal; from pathlib import Path; from attnbench.processes.fork_server import ForkServer\n"
        f"server = ForkServer([], log=Path({os.devnull!r}), environment={{}}); print(server._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    path = Path(f"/proc/{int(parent.stdout)}/stat")
    while path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z":
        pass
    assert parent.returncode == -signal.SIGKILL
