"""Child processes that answer requests on a socket; each request and each answer is one line of JSON.

A request is an instance of a class derived from ``Request``. If an answer does not have the type that the request
names, the child is killed. If a child gets an unknown request, or a request with wrong fields, the child ends with a
message on its standard error.

If a child dies, does not answer in time or sends too long an answer, ``Child.ask`` raises an exception with the reason.
Standard output and standard error of a child go to a log file. A child's descendants end with the child, and a child
ends with its parent, even if the parent is killed.
"""

import atexit
import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Never, Self, TypeVar

import msgspec

from attnbench.processes import descendants
from attnbench.processes.descendants import draw_mark, kill_on_close
from attnbench.processes.errors import ChildDied, ChildTimeout
from attnbench.processes.fork_server import ForkedProcess, ForkServer
from attnbench.processes.request import Handler, Request, find_reply_type, to_plain
from attnbench.records.outcome_facts import Crashed, TimedOut

__all__ = ["Child", "ChildDied", "ChildTimeout", "replace_home", "serve"]

# Seconds within which a child must exit after the socket has been closed at either end.
GRACE_S = 2.0
# Longest answer, in bytes: far more than a record needs, far less than the memory of a machine.
ANSWER_BYTES = 1 << 28
# OUTPUT_BYTES: number of bytes of output at which a child's log is truncated. WATCH_S: seconds between two checks of
# the size of the log.
OUTPUT_BYTES, WATCH_S = 1 << 24, 0.5
# Number of bytes at the end of the log in which the last line of a child's output is searched for.
LAST_BYTES = 1 << 16
# Number of times that one measurement counts the runnable threads of an idle child.
SAMPLES = 10
_CHUNK = 1 << 16

Reply = TypeVar("Reply")


class NewProcess:
    """A new process that runs ``python -m module`` in a process group of its own."""

    def __init__(self, module: str, *, connection: int, leash: int, log: int, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(connection)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[connection, leash],
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            kill_on_close(leash, self._process.pid)
        except OSError:
            self.kill()
            raise

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the process to end, and return its exit code: a negative number is that of a signal.

        Raises: TimeoutError.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def kill(self) -> None:
        """Kill the process and its group, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Child:
    """A child process that runs ``python -m module`` and answers requests.

    Raises: ChildDied where the system cannot start a process.
    """

    def __init__(
        self,
        module: str,
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        fork_server: ForkServer | None = None,
    ) -> None:
        """Start the child: fork it, if ``fork_server`` has the environment that the child needs."""
        ours, theirs = socket.socketpair()
        self._socket, self._buffer, self._log = ours, bytearray(), log
        ((name, mark),) = draw_mark().items()
        self._mark = f"{name}={mark}"
        held, self._leash = os.pipe()
        self._process: NewProcess | ForkedProcess
        try:
            with theirs, log.open("ab") as output:
                # The children of a run share a log. The output of this child begins at this offset.
                self._log_begin = output.tell()
                if fork_server is not None and fork_server.gives(environment or {}):
                    self._process = fork_server.fork(
                        module, connection=theirs.fileno(), leash=held, log=output.fileno(), mark=mark
                    )
                else:
                    self._process = NewProcess(
                        module,
                        connection=theirs.fileno(),
                        leash=held,
                        log=output.fileno(),
                        environment={**(environment or {}), name: mark},
                    )
        except OSError as error:
            ours.close()
            os.close(self._leash)
            raise ChildDied(Crashed(how="start", text=error.strerror or "")) from error
        finally:
            os.close(held)
        self._ended = False

    def ask(self, request: Request[Reply], *, timeout_s: float | None = None) -> Reply:
        """Send a request and return its answer.

        Raises: ChildDied if the child ends or sends an invalid answer; ChildTimeout if it does not answer in
        ``timeout_s`` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        ticket = secrets.token_hex(8)
        try:
            self._socket.settimeout(timeout_s)
            sent = {"ticket": ticket, "request": type(request).__name__, "fields": to_plain(request)}
            self._socket.sendall(json.dumps(sent).encode() + b"\n")
            line = self._read_line(deadline)
        except TimeoutError:
            self.kill()
            raise ChildTimeout(TimedOut(limit_s=timeout_s or 0.0)) from None
        except (BrokenPipeError, ConnectionResetError):
            raise ChildDied(self._find_end()) from None
        self._trim_log()
        prefix, _, answer = line.partition(b" ")
        if prefix != ticket.encode():
            # Kill the child: after an unexpected line, the next line may be the answer to an earlier request.
            self.kill()
            raise ChildDied(Crashed(how="answer"))
        return self._decode(answer, request)

    def _decode(self, answer: bytes, request: Request[Reply]) -> Reply:
        """Return an answer as an object of the type that its request names.

        Raises: ChildDied, after killing the child, if the answer is not of this type.
        """
        try:
            reply: Reply = msgspec.convert(json.loads(answer), find_reply_type(type(request)))
        except (ValueError, RecursionError) as error:
            self.kill()
            text = replace_home(" ".join(str(error).split()))[:200]
            raise ChildDied(Crashed(how="answer", text=text)) from None
        return reply

    def _read_line(self, deadline: float | None) -> bytes:
        """Read the next line from the child.

        Raises: TimeoutError after the deadline, ConnectionResetError if the connection is closed, ChildDied if the line
        is too long.
        """
        end = self._buffer.find(b"\n")
        while end < 0:
            if len(self._buffer) > ANSWER_BYTES:
                self.kill()
                raise ChildDied(Crashed(how="flood", text=f"{ANSWER_BYTES >> 20} MiB"))
            begin = len(self._buffer)
            self._buffer += self._receive(deadline)
            end = self._buffer.find(b"\n", begin)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _receive(self, deadline: float | None) -> bytes:
        """Receive bytes from the child; while waiting, truncate the child's log if it is too long."""
        while True:
            left_s = WATCH_S if deadline is None else min(deadline - time.monotonic(), WATCH_S)
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            try:
                chunk = self._socket.recv(_CHUNK)
            except TimeoutError:
                self._trim_log()
                continue
            if not chunk:
                raise ConnectionResetError
            return chunk

    def measure_core_demand(self, window_s: float) -> float | None:
        """Return the mean number of threads of an idle child and its descendants that use a core or wait for a core.

        The mean is over samples within ``window_s`` seconds. The result is None where there is no /proc.
        """
        pids = descendants.find_marked(self._mark)
        if not pids:
            return None
        counts = []
        for _ in range(SAMPLES):
            time.sleep(window_s / SAMPLES)
            counts.append(descendants.count_runnable_threads(pids))
        return sum(counts) / SAMPLES

    def kill(self) -> None:
        """Kill the child and its descendants."""
        if self._ended:
            return
        self._ended = True
        self._process.kill()
        descendants.kill_marked(self._mark)  # descendants that have left the process group
        self._socket.close()
        os.close(self._leash)

    def close(self) -> None:
        """Close the connection, wait for the child to exit, and kill the child if it does not."""
        self._socket.close()
        with contextlib.suppress(TimeoutError, ChildDied):
            self._process.wait(GRACE_S)
        self.kill()

    def _trim_log(self) -> None:
        """Truncate this child's part of the log if this part is too long, because the log could fill the disk."""
        with contextlib.suppress(OSError):
            if self._log.stat().st_size - self._log_begin > OUTPUT_BYTES:
                # The child writes in append mode, so its next output starts at the new end of the log.
                os.truncate(self._log, self._log_begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _find_end(self) -> Crashed:
        """Kill the child if it still runs, and return how it ended, with its last line if it exited by itself."""
        try:
            code = self._process.wait(GRACE_S)
        except TimeoutError:
            return Crashed(how="closed")
        finally:
            self.kill()
        if code < 0:
            # After a signal, the log ends with a faulthandler traceback, which says less than the name of the signal.
            return Crashed(how="signal", signal=_name_signal(-code))
        with self._log.open("rb") as log:
            log.seek(max(self._log_begin, log.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return Crashed(how="exit", code=code, text=replace_home(last)[:200])


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"


def replace_home(text: str) -> str:
    """Replace the user's home directory by ``~``, because the directory's name must not be stored."""
    home = str(Path.home())
    return text.replace(home, "~") if home != os.sep else text


def serve(handlers: Sequence[Handler], descriptor: int) -> Never:
    """Answer requests on a socket until the socket is closed, then end this process.

    If ``handlers`` is a list, a handler may add handlers of later requests to the list.

    Raises: ValueError for a request that has no handler, or whose fields are wrong.
    """
    owner = os.getpid()
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        for line in stream:
            sent = json.loads(line)
            handler = _find_handler(sent["request"], handlers)
            answer = handler.answer(msgspec.convert(sent["fields"], handler.kind))
            if os.getpid() != owner:
                os._exit(1)  # the handler forked, and this is the new process; only the original process answers
            stream.write(f"{sent['ticket']} {json.dumps(to_plain(answer))}\n".encode())
            stream.flush()
    _end_process()


def _end_process() -> Never:
    """End this process as Python does, but leave its objects as they are.

    To free the objects of torch takes 0.4 s of processor time in a forked process (AMD EPYC). Python has no public
    function for the rest of its end.
    """
    threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 (waits for threads, and ends pools of processes)
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, a full disk, or closed
            stream.flush()
    with contextlib.suppress(OSError, TypeError):  # the C library cannot be found by None on Windows
        ctypes.CDLL(None).fflush(None)
    os._exit(0)


def _find_handler(name: str, handlers: Sequence[Handler]) -> Handler:
    by_name = {handler.kind.__name__: handler for handler in handlers}
    if name not in by_name:
        raise ValueError(f"unknown request {name!r}; this process answers {', '.join(by_name)}")
    return by_name[name]
