"""Child processes that answer requests: one line of JSON each way, on a socket of their own.

A child's death, silence or overlong answer is an answer too. Standard output and error of a child go to a log file and
never mix with records.
"""

import contextlib
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

__all__ = ["Child", "ChildDied", "ChildTimeout", "serve", "without_home"]

# Time that a child gets to end by itself once the socket is closed at either end, in seconds.
GRACE_S = 2.0
_CHUNK = 1 << 16


class ChildDied(Exception):
    """The child ended before it answered; the message says how."""


class ChildTimeout(Exception):
    """The child did not answer in time and was killed."""


class Child:
    """A process running ``python -m module`` that answers requests."""

    def __init__(self, module: str, *, log: Path, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        self._socket, self._buffer, self._log = ours, b"", log
        with theirs, log.open("ab") as output:
            # Children of one run share a log; what this one writes begins here.
            self._log_begin = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # its own process group, so that whatever it starts dies with it
            )

    def ask(self, request: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """Answer to one request.

        Raises: ChildDied, ChildTimeout.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        ticket = secrets.token_hex(8)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(json.dumps({"ticket": ticket, **request}).encode() + b"\n")
            while b"\n" not in self._buffer:
                if deadline is not None:
                    self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
                chunk = self._socket.recv(_CHUNK)
                if not chunk:
                    raise ChildDied(self._epitaph())
                self._buffer += chunk
        except TimeoutError:
            self.kill()
            raise ChildTimeout(f"no answer within {timeout_s:g} s") from None
        except (BrokenPipeError, ConnectionResetError):
            raise ChildDied(self._epitaph()) from None
        line, _, self._buffer = self._buffer.partition(b"\n")
        prefix, _, answer = line.partition(b" ")
        if prefix != ticket.encode():
            # Whatever was meant by it, no later line could be trusted to answer its own request either.
            self.kill()
            raise ChildDied("something else than an answer was written to the process's connection")
        return json.loads(answer)

    def kill(self) -> None:
        """End the child and all that it started, now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()

    def close(self) -> None:
        """Let the child end by itself, then end it."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        self.kill()

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
            log.seek(self._log_begin)
            lines = log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"the process exited with code {code}" + (f" ({without_home(last)[:200]})" if last else "")


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
