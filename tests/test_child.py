"""Child processes: whatever happens to one, its parent gets an answer or is told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbench.processes.rpc import Child, ChildDied, ChildTimeout, replace_home

# Answers requests by doing what tests want of it.
MODULE = '''
import os
import signal
import subprocess
import sys
import time

from attnbench.processes.rpc import serve


def echo(*, value):
    return value


def chatter(*, value):
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
    time.sleep(60)


def breed():
    """Start a process that outlives its parent unless somebody ends it too."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid


def hang():
    time.sleep(60)


def hang_up():
    os.closerange(3, 256)
    time.sleep(60)


def fork(*, value):
    return "the fork's" if os.fork() == 0 else value


def read():
    return sys.stdin.read()


def leave():
    """Start a process that leaves the group, and that starts another one."""
    program = "import os, time; os.fork(); time.sleep(60)"
    return subprocess.Popen([sys.executable, "-c", program], start_new_session=True).pid


def stubborn(*, place):
    """Never end, whatever asks for it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    with open(place, "w") as file:
        print(os.getpid(), file=file)
    while True:
        pass


def flood():
    """Print 64 MB, and say how many of them were kept at the most."""
    sizes = []
    for _ in range(64):
        os.write(1, b"x" * 1_000_000)
        sizes.append(os.fstat(1).st_size)
        time.sleep(0.02)
    return max(sizes)


def babble():
    """Write without end to the connection."""
    while True:
        os.write(int(sys.argv[1]), b"x" * 65_536)


def spin():
    """Start a thread that goes on after the answer."""
    import threading

    def run():
        while True:
            pass

    threading.Thread(target=run, daemon=True).start()


functions = (echo, chatter, end, raise_signal, breed, hang, hang_up, fork, read)
functions += (leave, stubborn, flood, babble, spin)
serve({function.__name__: function for function in functions}, int(sys.argv[1]))
'''


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Log of the children of a test."""
    return tmp_path / "log"


@pytest.fixture
def child(tmp_path: Path, log: Path) -> Iterator[Child]:
    """Child that does what it is told."""
    (tmp_path / "obedient.py").write_text(MODULE)
    with start(log) as started:
        yield started


def start(log: Path) -> Child:
    """Another one."""
    path = os.pathsep.join([str(log.parent), os.environ.get("PYTHONPATH", "")])
    return Child("obedient", log=log, environment={"PYTHONPATH": path})


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def ends(pid: int) -> bool:
    """Whether a process, of which nobody else waits for the end, is gone within some seconds."""
    deadline = time.monotonic() + 10
    while not is_gone(pid) and time.monotonic() < deadline:
        pass
    return is_gone(pid)


def test_requests_are_answered_in_turn(child: Child) -> None:
    """Each request gets its own answer, whatever plain value that is."""
    for value in (1, "two\n", [3.5, None], {"naïve": True}):
        assert child.ask({"do": "echo", "value": value}) == value


def test_large_answers_are_whole(child: Child) -> None:
    """An answer of 20 MB, far more than a socket holds, arrives whole; so does a request of that size."""
    value = "x" * 20_000_000
    assert child.ask({"do": "echo", "value": value}, timeout_s=60) == value


def test_output_never_mixes_with_answers(child: Child, log: Path) -> None:
    """What a child and its own children print goes to the log; there is nothing to read on standard input."""
    assert child.ask({"do": "chatter", "value": 7}) == 7
    assert child.ask({"do": "read"}) == ""
    child.close()
    assert {"not an answer", '{"neither": "is this"}', "nor this"} <= set(log.read_text().splitlines())


def test_death_by_exit_code_is_told_with_the_last_line(child: Child) -> None:
    """A child that exits is told by its code and by the last line that it wrote."""
    with pytest.raises(ChildDied) as died:
        child.ask({"do": "end", "code": 7, "last": "no space left"})
    assert str(died.value) == "the process exited with code 7 (no space left)"


def test_exit_with_code_0_is_a_death_too(child: Child) -> None:
    """A child that ends without an answer died, even if it says that all is well."""
    with pytest.raises(ChildDied, match=r"^the process exited with code 0$"):
        child.ask({"do": "end", "code": 0, "last": ""})


def test_the_last_line_is_the_child_s_own(child: Child, log: Path) -> None:
    """Children share a log, and the words of one are never put in another's mouth."""
    child.ask({"do": "chatter", "value": 0})
    with start(log) as silent, pytest.raises(ChildDied, match=r"^the process exited with code 3$"):
        silent.ask({"do": "end", "code": 3, "last": ""})


def test_unhandled_exceptions_are_told_by_their_message(child: Child) -> None:
    """The last line of a traceback says what was raised."""
    with pytest.raises(ChildDied, match=r"^the process exited with code 1 \(KeyError: 'nonsense'\)$"):
        child.ask({"do": "nonsense"})


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGABRT"])
def test_death_by_signal_is_told_by_its_name(child: Child, name: str) -> None:
    """A child that a signal killed is told by that signal."""
    with pytest.raises(ChildDied, match=f"^the process was killed by {name}$"):
        child.ask({"do": "raise_signal", "number": signal.Signals[name]})


def test_time_out_kills_the_whole_process_group(child: Child) -> None:
    """When the time is up, the child and what it started are killed."""
    grandchild = child.ask({"do": "breed"})
    with pytest.raises(ChildTimeout, match=r"^no answer within 0.5 s$"):
        child.ask({"do": "hang"}, timeout_s=0.5)
    assert ends(grandchild)


def test_closing_ends_what_the_child_started(child: Child) -> None:
    """A child that ends by itself, as it should, leaves nothing behind either."""
    grandchild = child.ask({"do": "breed"})
    child.close()
    assert ends(grandchild)


def test_child_that_hangs_up_is_dead(child: Child) -> None:
    """A child that closes its connection and lives on is killed: nobody waits for it, without a time-out either."""
    with pytest.raises(ChildDied, match=r"^the process closed its connection without an answer, and was killed$"):
        child.ask({"do": "hang_up"})


def test_fork_that_comes_back_answers_nothing(child: Child) -> None:
    """A handler that forks and returns twice is answered for once, and the next answer is the next request's."""
    assert child.ask({"do": "fork", "value": "the parent's"}) == "the parent's"
    assert child.ask({"do": "echo", "value": "next"}) == "next"


def test_what_leaves_the_group_is_ended_too(child: Child) -> None:
    """Processes in a session of their own are found by their environment, and end with the child."""
    pid = child.ask({"do": "leave"})
    assert not is_gone(pid)
    child.close()
    assert is_gone(pid)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel of Linux alone tells")
def test_a_child_ends_with_its_parent(tmp_path: Path, log: Path) -> None:
    """An endless loop that ignores every signal is gone as soon as its parent is, even if that was killed."""
    (tmp_path / "obedient.py").write_text(MODULE)
    program = (
        "from pathlib import Path; from attnbench.processes.rpc import Child\n"
        f"Child('obedient', log=Path({str(log)!r})).ask({{'do': 'stubborn', 'place': {str(tmp_path / 'pid')!r}}})"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path})
    deadline = time.monotonic() + 60
    pid = ""
    while not pid.endswith("\n") and time.monotonic() < deadline:
        pid = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
    assert not is_gone(int(pid))
    parent.kill()
    parent.wait()
    assert ends(int(pid))


def test_what_is_printed_is_kept_within_bounds(child: Child, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that never ends fills no disk: it is thrown away while the child still prints."""
    monkeypatch.setattr("attnbench.processes.rpc.OUTPUT_BYTES", 1_000_000)
    monkeypatch.setattr("attnbench.processes.rpc.WATCH_S", 0.05)
    assert child.ask({"do": "flood"}, timeout_s=60) < 32_000_000
    assert log.stat().st_size <= 1_000_000
    with pytest.raises(ChildDied, match=r"^the process exited with code 7 \(no space left\)$"):
        child.ask({"do": "end", "code": 7, "last": "\nno space left"})


def test_an_answer_that_never_ends_is_a_death(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes without a line's end fill no memory."""
    monkeypatch.setattr("attnbench.processes.rpc.ANSWER_BYTES", 1 << 20)
    with pytest.raises(ChildDied) as died:
        child.ask({"do": "babble"})
    assert str(died.value) == "more than 1 MiB were written to the process's connection"


def test_a_busy_child_is_told_from_an_idle_one(child: Child) -> None:
    """Cores in use while nothing is asked: none, or that of a thread that goes on."""
    child.ask({"do": "echo", "value": 1})
    looks = [child.measure_core_demand(0.05) for _ in range(5)]
    if None in looks:
        pytest.skip("this system does not say what a thread does")
    assert min(look for look in looks if look is not None) < 0.5
    child.ask({"do": "spin"})
    assert child.measure_core_demand(0.2) == 1.0


def test_child_that_cannot_start_is_dead(log: Path) -> None:
    """A module that does not exist is told as the death that it is."""
    with Child("attnbench.nonsense", log=log) as child, pytest.raises(ChildDied) as died:
        child.ask({"do": "echo"})
    assert str(died.value) == (f"the process exited with code 1 ({sys.executable}: No module named attnbench.nonsense)")


def test_a_process_that_the_system_refuses_is_a_death(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no more processes can be started, that is told, and nothing is left open."""

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(ChildDied, match=r"^no process can be started: Resource temporarily unavailable$"):
        Child("obedient", log=log)
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_home_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home directory becomes a tilde, unless it is the root, which every path begins with."""
    monkeypatch.setenv("HOME", "/home/somebody")
    assert replace_home("no file /home/somebody/x") == "no file ~/x"
    monkeypatch.setenv("HOME", "/")
    assert replace_home("no file /x") == "no file /x"
