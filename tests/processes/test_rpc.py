"""Tests of child processes: each request gets an answer, or an exception that says how the child ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attnbench.processes.fork_server import ForkServer
from attnbench.processes.request import Request
from attnbench.processes.rpc import Child, ChildDied, ChildTimeout, replace_home
from attnbench.records.outcome_facts import Crashed, TimedOut

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux only")
# Source of the module that a child runs: one request handler for each behaviour that the tests need.
MODULE = '''
import atexit
import concurrent.futures
import ctypes
import os
import signal
import subprocess
import sys
import time

import msgspec

from attnbench.processes.request import Request
from attnbench.processes.rpc import serve


class Call(Request[object], frozen=True, kw_only=True):
    function: str
    arguments: dict[str, object]


class Count(Request[int], frozen=True, kw_only=True):
    text: str


def echo(*, value):
    return value


def print_and_echo(*, value):
    print("not an answer")
    print('{"neither": "is this"}', file=sys.stderr)
    os.system("echo nor this")
    return value


def end(*, code, last):
    print(last, flush=True)
    os._exit(code)


def raise_signal(*, number):
    print("last words", flush=True)
    os.kill(os.getpid(), number)
    time.sleep(3600)


def start_process():
    """Start a process that outlives its parent unless it is killed, too."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid


def hang():
    time.sleep(3600)


def close_connection():
    os.closerange(3, 256)
    time.sleep(3600)


def fork(*, value):
    return "the fork's" if os.fork() == 0 else value


def read():
    return sys.stdin.read()


def leave_group():
    """Start a process that leaves the process group, and that starts another one."""
    program = "import os, time; os.fork(); time.sleep(3600)"
    return subprocess.Popen([sys.executable, "-c", program], start_new_session=True).pid


def loop_ignoring_signals(*, place):
    """Never return, and ignore the signals that ask for an end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    with open(place, "w") as file:
        print(os.getpid(), file=file)
    while True:
        pass


def print_megabytes():
    """Print until the log has been truncated three times, but never beyond 64 MB."""
    truncated = size = 0
    while truncated < 3:
        if size < 64_000_000:
            os.write(1, b"x" * 1_000_000)
        time.sleep(0.02)
        before, size = size, os.fstat(1).st_size
        truncated += size < before
    return truncated


def write_without_end():
    """Write to the connection without end."""
    while True:
        os.write(int(sys.argv[1]), b"x" * 65_536)


def start_busy_thread():
    """Start a thread that keeps a core busy after the answer."""
    import threading

    def run():
        while True:
            pass

    threading.Thread(target=run, daemon=True).start()


def say_goodbye():
    """Print in C, leave a pool open, and register an exit function, and an object that must not be freed at the end."""
    global kept, pool

    class Kept:
        def __del__(self):
            os.write(1, b"freed\\n")

    pool = concurrent.futures.ProcessPoolExecutor(1)
    pool.submit(int).result()
    kept = Kept()
    ctypes.CDLL(None).printf(b"from C\\n")
    atexit.register(print, "goodbye")


functions = (echo, print_and_echo, end, raise_signal, start_process, hang, close_connection, fork, read)
functions += (leave_group, loop_ignoring_signals, print_megabytes, write_without_end, start_busy_thread)
functions += (say_goodbye,)
by_name = {function.__name__: function for function in functions}
handlers = [
    Call.answered_by(lambda request: by_name[request.function](**request.arguments)),
    Count.answered_by(lambda request: request.text),  # not an int, as Count promises
]
serve(handlers, int(sys.argv[1]))
'''


class Call(Request[object], frozen=True, kw_only=True):
    """The request of the same name in MODULE: call a function by its name."""

    function: str
    arguments: dict[str, object]


class Count(Request[int], frozen=True, kw_only=True):
    """The request of the same name in MODULE, which is answered by a text instead of a number."""

    text: object


def ended(fact: Crashed | TimedOut) -> Callable[[ChildDied | ChildTimeout], bool]:
    """Return the check of an error that says how a child ended."""
    return lambda died: died.fact == fact


class Unheard(Request[None], frozen=True, kw_only=True):
    """A request that MODULE does not answer."""


def call(child: Child, function: str, *, timeout_s: float | None = None, **arguments: object) -> Any:
    """Let a child call a function of MODULE, and return the result."""
    return child.ask(Call(function=function, arguments=arguments), timeout_s=timeout_s)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a child a minute to exit, because on a busy machine the 2 s of a run may be too few."""
    monkeypatch.setattr("attnbench.processes.rpc.GRACE_S", 60.0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Path of the log file into which all children of a test print."""
    return tmp_path / "log"


@pytest.fixture(params=["new", pytest.param("forked", marks=LINUX)])
def fork_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ForkServer | None]:
    """The server that forks the children of a test; None where they are new processes."""
    server = None
    if request.param == "forked":
        server = ForkServer(["msgspec"], log=tmp_path / "server_log", environment=find_modules(tmp_path))
    yield server
    if server is not None:
        server.close()


@pytest.fixture
def child(tmp_path: Path, log: Path, fork_server: ForkServer | None) -> Iterator[Child]:
    """Child process that runs MODULE."""
    (tmp_path / "child_module.py").write_text(MODULE)
    with start(log, fork_server) as started:
        yield started


def find_modules(folder: Path) -> dict[str, str]:
    """Return the environment of processes that import modules of a folder."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def start(log: Path, fork_server: ForkServer | None) -> Child:
    """Start a child process that runs MODULE, which must lie in the folder of the log."""
    return Child("child_module", log=log, environment=find_modules(log.parent), fork_server=fork_server)


def is_gone(pid: int) -> bool:
    """Return whether a process has ended (a zombie counts as ended)."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def ends_soon(pid: int) -> bool:
    """Wait at most 60 s for the end of a process that is not a child of this one; return whether it has ended."""
    deadline = time.monotonic() + 60
    while not is_gone(pid) and time.monotonic() < deadline:
        pass
    return is_gone(pid)


def test_requests_are_answered_in_turn(child: Child) -> None:
    """Each request gets its own answer, which may be any JSON value."""
    for value in (1, "two\n", [3.5, None], {"naïve": True}, float("inf")):
        assert call(child, "echo", value=value) == value


def test_large_answers_are_complete(child: Child) -> None:
    """A request and an answer of 20 MB, far more than the buffer of a socket, arrive completely."""
    value = "x" * 20_000_000
    assert call(child, "echo", value=value, timeout_s=600) == value


def test_output_never_mixes_with_answers(child: Child, log: Path) -> None:
    """Output of a child and of its own children goes to the log; standard input is empty."""
    assert call(child, "print_and_echo", value=7) == 7
    assert call(child, "read") == ""
    child.close()
    assert {"not an answer", '{"neither": "is this"}', "nor this"} <= set(log.read_text().splitlines())


def test_a_child_calls_its_exit_functions_and_frees_nothing(child: Child, log: Path) -> None:
    """A closed child ends its pools and calls its exit functions; what it has printed in C is in the log."""
    call(child, "say_goodbye")
    child.close()
    assert sorted(log.read_text().splitlines()) == ["from C", "goodbye"]


def test_the_error_of_an_exit_gives_the_code_and_the_last_line(child: Child) -> None:
    """The error about a child that exits gives its exit code and the last line of its output."""
    with pytest.raises(ChildDied) as died:
        call(child, "end", code=7, last="no space left")
    assert died.value.fact == Crashed(how="exit", code=7, text="no space left")


def test_exit_with_code_0_is_an_error_too(child: Child) -> None:
    """If a child exits with code 0 before it answers, the request raises ChildDied."""
    with pytest.raises(ChildDied, check=ended(Crashed(how="exit"))):
        call(child, "end", code=0, last="")


def test_the_last_line_is_the_child_s_own(child: Child, log: Path, fork_server: ForkServer | None) -> None:
    """The error about a child never quotes the output of another child in the same log."""
    call(child, "print_and_echo", value=0)
    with (
        start(log, fork_server) as silent,
        pytest.raises(ChildDied, check=ended(Crashed(how="exit", code=3))),
    ):
        call(silent, "end", code=3, last="")


def test_an_unknown_request_ends_the_child_with_a_reason(child: Child) -> None:
    """A request that a child does not know ends the child; the error names the request and the known ones."""
    with pytest.raises(ChildDied) as died:
        child.ask(Unheard())
    assert died.value.fact.text == "ValueError: unknown request 'Unheard'; this process answers Call, Count"


def test_a_request_with_a_wrong_field_ends_the_child_with_a_reason(child: Child) -> None:
    """A request with a field of a wrong type ends the child; the error names the field."""
    with pytest.raises(ChildDied, check=lambda died: "Expected `str`, got `int` - at `$.text`" in died.fact.text):
        child.ask(Count(text=3))


def test_an_answer_of_a_wrong_type_is_the_death_of_the_child(child: Child) -> None:
    """An answer that is not of the type that its request names raises ChildDied, and the child is killed."""
    pid = call(child, "start_process")
    with pytest.raises(ChildDied) as died:
        child.ask(Count(text="three"))
    assert died.value.fact == Crashed(how="answer", text="Expected `int`, got `str`")
    assert ends_soon(pid)


def test_the_error_of_an_unhandled_exception_quotes_it(child: Child) -> None:
    """The quoted last line of a traceback names the exception."""
    with pytest.raises(ChildDied, check=ended(Crashed(how="exit", code=1, text="KeyError: 'nonsense'"))):
        call(child, "nonsense")


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGABRT"])
def test_the_error_of_a_signal_names_it(child: Child, name: str) -> None:
    """The error about a child that was killed by a signal names the signal."""
    with pytest.raises(ChildDied, check=ended(Crashed(how="signal", signal=name))):
        call(child, "raise_signal", number=signal.Signals[name])


def test_time_out_kills_the_whole_process_group(child: Child) -> None:
    """If a request times out, the child and the processes that the child started are killed."""
    grandchild = call(child, "start_process")
    with pytest.raises(ChildTimeout, check=ended(TimedOut(limit_s=0.5))):
        call(child, "hang", timeout_s=0.5)
    assert ends_soon(grandchild)


def test_closing_ends_processes_that_the_child_started(child: Child) -> None:
    """When a child is closed, the processes that it started end, even if the child exits by itself."""
    grandchild = call(child, "start_process")
    child.close()
    assert ends_soon(grandchild)


def test_a_child_that_closes_its_connection_is_killed(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that closes its connection and does not exit is killed, even if the request has no time-out."""
    monkeypatch.setattr("attnbench.processes.rpc.GRACE_S", 0.1)
    with pytest.raises(ChildDied, check=ended(Crashed(how="closed"))):
        call(child, "close_connection")


def test_a_fork_of_a_handler_answers_nothing(child: Child) -> None:
    """If a handler forks and returns in both processes, only the child's own process answers, not the fork."""
    assert call(child, "fork", value="the parent's") == "the parent's"
    assert call(child, "echo", value="next") == "next"


def test_processes_outside_the_group_are_ended_too(child: Child) -> None:
    """A process that a child started in a session of its own is found by its environment, and ends with the child."""
    pid = call(child, "leave_group")
    assert not is_gone(pid)
    child.close()
    assert is_gone(pid)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs F_SETSIG, which only Linux has")
@pytest.mark.parametrize("fork_server", ["None", f"ForkServer([], log=Path({os.devnull!r}), environment={{}})"])
def test_a_child_ends_with_its_parent(tmp_path: Path, log: Path, fork_server: str) -> None:
    """If the parent is killed, a child ends even if it is in an endless loop and ignores signals."""
    (tmp_path / "child_module.py").write_text(MODULE)
    program = (
        "from pathlib import Path\n"
        "from attnbench.processes.request import Request; from attnbench.processes.rpc import Child\n"
        "from attnbench.processes.fork_server import ForkServer\n"
        "class Call(Request[object], frozen=True, kw_only=True): function: str; arguments: dict[str, object]\n"
        f"request = Call(function='loop_ignoring_signals', arguments={{'place': {str(tmp_path / 'pid')!r}}})\n"
        f"Child('child_module', log=Path({str(log)!r}), fork_server={fork_server}).ask(request)"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path})
    deadline = time.monotonic() + 600
    pid = ""
    while not pid.endswith("\n") and time.monotonic() < deadline:
        pid = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
    assert not is_gone(int(pid))
    parent.kill()
    parent.wait()
    assert ends_soon(int(pid))


def test_the_log_is_truncated(child: Child, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is truncated while the child prints, so that endless output does not fill the disk."""
    monkeypatch.setattr("attnbench.processes.rpc.OUTPUT_BYTES", 1_000_000)
    monkeypatch.setattr("attnbench.processes.rpc.WATCH_S", 0.05)
    assert call(child, "print_megabytes", timeout_s=600) == 3
    assert log.stat().st_size <= 1_000_000
    with pytest.raises(ChildDied, check=ended(Crashed(how="exit", code=7, text="no space left"))):
        call(child, "end", code=7, last="\nno space left")


def test_an_endless_answer_is_an_error(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that exceeds ANSWER_BYTES raises ChildDied, so that an endless answer does not fill the memory."""
    monkeypatch.setattr("attnbench.processes.rpc.ANSWER_BYTES", 1 << 20)
    with pytest.raises(ChildDied) as died:
        call(child, "write_without_end")
    assert died.value.fact == Crashed(how="flood", text="1 MiB")


def test_a_busy_child_is_distinguished_from_an_idle_one(child: Child) -> None:
    """``measure_core_demand`` returns almost 0 cores for an idle child, and 1 for a child with a busy thread.

    On a busy machine, the child's main thread may still wait for a core to return to its idle state.
    """
    call(child, "echo", value=1)
    demands = [child.measure_core_demand(0.05) for _ in range(5)]
    if None in demands:
        pytest.skip("this system has no /proc")
    assert min(demand for demand in demands if demand is not None) < 0.5
    call(child, "start_busy_thread")
    demands = []
    while 1.0 not in demands and len(demands) < 50:
        demands.append(child.measure_core_demand(0.2))
    assert min(demands) == 1.0


def test_a_module_that_does_not_exist_is_an_error(log: Path) -> None:
    """The error about a child whose module does not exist gives the exit code and Python's message."""
    with Child("attnbench.nonsense", log=log) as child, pytest.raises(ChildDied) as died:
        call(child, "echo")
    last = f"{sys.executable}: No module named attnbench.nonsense"
    assert died.value.fact == Crashed(how="exit", code=1, text=last)


def test_a_process_that_the_system_refuses_is_an_error(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no process can be started, ChildDied gives the system's reason, and no file descriptor stays open."""

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(ChildDied, check=ended(Crashed(how="start", text="Resource temporarily unavailable"))):
        Child("child_module", log=log)
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_home_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """``replace_home`` replaces the home directory by a tilde, unless the home directory is "/"."""
    monkeypatch.setenv("HOME", "/home/somebody")
    assert replace_home("no file /home/somebody/x") == "no file ~/x"
    monkeypatch.setenv("HOME", "/")
    assert replace_home("no file /x") == "no file /x"
