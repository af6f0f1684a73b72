"""Child processes that answer requests: one line of JSON each way, on a socket of their own.

A child's death, silence or overlong answer is an answer too. Standard output and error of a child go to a log file and
never mix with records. Whatever a child starts ends with it, and it ends with its parent, however that ends.
"""

import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attnbench.processes import descendants

__all__ = ["Child", "ChildDied", "ChildTimeout", "serve", "without_home"]

# Time that a child gets to end by itself once the socket is closed at either end, in seconds.
GRACE_S = 2.0
# Longest answer, in bytes: far more than a record takes, far less than the memory of a machine.
ANSWER_BYTES = 1 << 28
# What a child may have printed before it is thrown away, in bytes, and time between two looks at it, in seconds.
OUTPUT_BYTES, WATCH_S = 1 << 24, 0.5
# Bytes at the end of what a child has printed in which its last line is looked for.
LAST_BYTES = 1 << 16
# Looks at what a child does when nothing is asked of it.
LOOKS = 10
# A word in the environment of a child and of all that it starts.
MARK = "ATTNBENCH_CHILD"
_CHUNK = 1 << 16


class ChildDied(Exception):
    """The child ended before it answered; the message says how."""


class ChildTimeout(Exception):
    """The child did not answer in time and was killed."""


class Child:
    """A process running ``python -m module`` that answers requests.

    Raises: ChildDied, where the system starts no more processes.
    """

    def __init__(self, module: str, *, log: Path, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        self._socket, self._buffer, self._log = ours, bytearray(), log
        self._mark = f"{MARK}={secrets.token_hex(8)}"
        name, _, value = self._mark.partition("=")
        held, self._leash = os.pipe()
        try:
            with theirs, log.open("ab") as output:
                # Children of one run share a log; what this one writes begins here.
                self._log_begin = output.tell()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno(), held],
                    env={**os.environ, **(environment or {}), name: value},
                    start_new_session=True,  # its own process group, so that whatever it starts dies with it
                )
            _tie(held, self._process.pid)
        except OSError as error:
            ours.close()
            os.close(self._leash)
            raise ChildDied(f"no process can be started: {error.strerror}") from error
        finally:
            os.close(held)
        self._ended = False

    def ask(self, request: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """Answer to one request.

        Raises: ChildDied, ChildTimeout.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        ticket = secrets.token_hex(8)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(json.dumps({"ticket": ticket, **request}).encode() + b"\n")
            line = self._line(deadline)
        except TimeoutError:
            self.kill()
            raise ChildTimeout(f"no answer within {timeout_s:g} s") from None
        except (BrokenPipeError, ConnectionResetError):
            raise ChildDied(self._epitaph()) from None
        self._trim_log()
        prefix, _, answer = line.partition(b" ")
        if prefix != ticket.encode():
            # Whatever was meant by it, no later line could be trusted to answer its own request either.
            self.kill()
            raise ChildDied("something else than an answer was written to the process's connection")
        return json.loads(answer)

    def _line(self, deadline: float | None) -> bytes:
        """Next line from the child.

        Raises: TimeoutError, ConnectionResetError, ChildDied.
        """
        end = self._buffer.find(b"\n")
        while end < 0:
            if len(self._buffer) > ANSWER_BYTES:
                self.kill()
                raise ChildDied(f"more than {ANSWER_BYTES >> 20} MiB were written to the process's connection")
            begin = len(self._buffer)
            self._buffer += self._received(deadline)
            end = self._buffer.find(b"\n", begin)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _received(self, deadline: float | None) -> bytes:
        """Bytes from the child; while there are none, what it prints is kept within bounds."""
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

    def cores_wanted(self, window_s: float) -> float | None:
        """Cores that the child, and all that it has started, use or wait for while nothing is asked of it.

        The mean of several looks within a time; None where the system does not say.
        """
        pids = descendants.marked(self._mark)
        if not pids:
            return None
        looks = []
        for _ in range(LOOKS):
            time.sleep(window_s / LOOKS)
            looks.append(descendants.runnable(pids))
        return sum(looks) / LOOKS

    def kill(self) -> None:
        """End the child and all that it started, now."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        descendants.end(self._mark)  # those that left the group
        self._socket.close()
        os.close(self._leash)

    def close(self) -> None:
        """Let the child end by itself, then end it."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        self.kill()

    def _trim_log(self) -> None:
        """Throw away what was printed where it is too much: nobody reads it, and it could fill a disk."""
        with contextlib.suppress(OSError):
            if self._log.stat().st_size - self._log_begin > OUTPUT_BYTES:
                # It is open for appending, so that what is printed next follows.
                os.truncate(self._log, self._log_begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _epitaph(self) -> str:
        """How the child ended, with the last line that it wrote where it exited by itself."""
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return "the process closed its connection without an answer, and was killed"
        finally:
            self.kill()
        if code < 0:
            # The last lines are then faulthandler's, which say less than the signal.
            return f"the process was killed by {_signal_name(-code)}"
        with self._log.open("rb") as log:
            log.seek(max(self._log_begin, log.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"the process exited with code {code}" + (f" ({without_home(last)[:200]})" if last else "")


def _tie(descriptor: int, group: int) -> None:
    """Let the kernel kill a process group as soon as nobody holds the other end of this pipe any more.

    A child that waits for requests sees by itself that its parent is gone; one in an endless loop does not.
    Source: F_SETOWN and F_SETSIG in https://man7.org/linux/man-pages/man2/F_GETSIG.2const.html; Linux alone has them.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, -group)
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"


def without_home(text: str) -> str:
    """Text as it may be stored: without the user's home directory."""
    home = str(Path.home())
    return text.replace(home, "~") if home != os.sep else text


def serve(handlers: Mapping[str, Callable[..., Any]], descriptor: int) -> None:
    """Answer requests ``{"ticket": text, "do": name, ...keywords}`` on a descriptor until it is closed."""
    owner = os.getpid()
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        for line in stream:
            request = json.loads(line)
            ticket = request.pop("ticket")
            answer = handlers[request.pop("do")](**request)
            if os.getpid() != owner:
                os._exit(1)  # a fork that came back from a handler: the answer is its parent's to give
            stream.write(f"{ticket} {json.dumps(answer)}\n".encode())
            stream.flush()
