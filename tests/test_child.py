"""Child processes: whatever happens to one, its parent gets an answer or is told."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbench.child import Child, ChildDied, ChildTimeout, without_home

# Answers requests by doing what tests want of it.
MODULE = '''
import os
import signal
import subprocess
import sys
import time

from attnbench.child import serve


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


functions = (echo, chatter, end, raise_signal, breed, hang, hang_up, fork, read)
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


def ends(pid: int) -> bool:
    """Whether a process, of which nobody else waits for the end, is gone within some seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if "State:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
    return False


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


def test_child_that_cannot_start_is_dead(log: Path) -> None:
    """A module that does not exist is told as the death that it is."""
    with Child("attnbench.nonsense", log=log) as child, pytest.raises(ChildDied) as died:
        child.ask({"do": "echo"})
    assert str(died.value) == (f"the process exited with code 1 ({sys.executable}: No module named attnbench.nonsense)")


def test_home_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home directory becomes a tilde, unless it is the root, which every path begins with."""
    monkeypatch.setenv("HOME", "/home/somebody")
    assert without_home("no file /home/somebody/x") == "no file ~/x"
    monkeypatch.setenv("HOME", "/")
    assert without_home("no file /x") == "no file /x"
