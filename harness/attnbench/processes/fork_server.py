"""A process that imports the modules of workers once, and forks a worker at each request.

To import torch takes 1.4 s of processor time (Intel Xeon); a forked worker has torch already. A worker can be forked
because the server computes nothing: torch starts its threads at the first computation. numpy's OpenBLAS has threads
earlier, but ends them before a fork, and starts them again.

Forked workers share the addresses of all that the server imported, and times depend on addresses. Processes that
measure times are therefore new processes.
"""

import contextlib
import errno
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

from attnbench.processes import descendants
from attnbench.processes.errors import ChildDied
from attnbench.records.outcome_facts import Crashed

__all__ = ["AVAILABLE", "ForkServer", "ForkedProcess"]

# Whether workers can be forked: only Linux shows the environment by which descendants of a worker are found.
AVAILABLE = sys.platform == "linux"
# Variables that workers do not read. pytest gives the first one another value in each test, for readers of a list of
# processes. Torch sets the second one in each process that compiles, to an address in this process.
_UNREAD = frozenset({"PYTEST_CURRENT_TEST", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"})
# A number on the connection of a forked process.
_NUMBER = struct.Struct("=i")
# Longest request in bytes: the name of a module, a mark, and a path of at most 4096 bytes, which JSON may escape.
_REQUEST_BYTES = 1 << 15
# Descriptors of a request: the connection, the leash and the log of the new process, and the connection for its end.
_DESCRIPTORS = 4


class ForkedProcess:
    """A process that a fork server has been asked to fork; several threads may wait for it and kill it."""

    def __init__(self, connection: socket.socket) -> None:
        # Gives the id of the process, or the negative number of the error of the fork; later the exit code.
        self._connection = connection
        # Held while a number is read and noted, so that each number is read by one thread.
        self._reading = Lock()
        self._pid: int | None = None
        self._code: int | None = None
        # Why the process was not forked; None if it was, or if this is not known yet.
        self._fault: Crashed | None = None

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the process to end, and return its exit code: a negative number is that of a signal.

        Raises: TimeoutError; ChildDied if the process was not forked.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._code is None:
            self._read_next(deadline)
        return self._code

    def kill(self) -> None:
        """Kill the process and its group, and wait for its end; if it has not been forked yet, it ends by itself."""
        try:
            while self._pid is None and self._code is None:
                self._read_next(time.monotonic())
        except (TimeoutError, ChildDied):
            with self._reading:
                self._end(-signal.SIGKILL)
        if self._pid is not None and self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            self.wait()

    def _read_next(self, deadline: float | None) -> None:
        """Wait for the next number and note it, unless another thread does so first.

        Raises: TimeoutError; ChildDied if the process was not forked.
        """
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = True
        with contextlib.suppress(ValueError, OSError):  # another thread has closed the connection, before or meanwhile
            ready = bool(select.select([self._connection], [], [], left_s)[0])
        if not ready:
            raise TimeoutError
        with self._reading:
            if self._code is None and not self._fault:
                with contextlib.suppress(BlockingIOError):
                    self._note(self._connection.recv(_NUMBER.size, socket.MSG_DONTWAIT))
        if self._fault:
            raise ChildDied(self._fault)

    def _note(self, received: bytes) -> None:
        """Note a number; none is received if the connection was closed."""
        number = int(_NUMBER.unpack(received)[0]) if received else None
        if self._pid is not None:
            # If the server was killed, nobody knows how the process ended.
            self._end(-signal.SIGKILL if number is None else number)
        elif number is None:
            self._fault = Crashed(how="start", text="the fork server has ended")
        elif number < 0:
            self._fault = Crashed(how="start", text=os.strerror(-number))
        else:
            self._pid = number

    def _end(self, code: int) -> None:
        if self._code is None:
            self._code = code
        with contextlib.suppress(OSError):  # the server has ended
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes other threads that wait
        self._connection.close()


class ForkServer:
    """Starts a process that imports ``modules``, and asks it for workers; a worker runs one of these modules.

    Raises: OSError where the system cannot start a process.
    """

    def __init__(self, modules: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> None:
        self._environment = _read_environment(environment)
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, log.open("ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "attnbench.processes.fork_server", str(theirs.fileno()), *modules],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    env=self._environment | descendants.draw_mark(),
                    start_new_session=True,
                )
        except OSError:
            self._connection.close()
            raise

    def gives(self, environment: Mapping[str, str]) -> bool:
        """Whether a forked worker has the environment that a new process would have.

        If the working directory was removed, only a new process can have it.
        """
        with contextlib.suppress(OSError):  # the working directory was removed
            Path.cwd()
            return _read_environment(environment) == self._environment
        return False

    def fork(self, module: str, *, connection: int, leash: int, log: int, mark: str) -> ForkedProcess:
        """Ask for a worker that runs ``module``; the request is carried out when the server has its imports.

        The worker gets the descriptors ``connection``, ``leash`` and ``log``, and ``mark`` as the value of its mark.
        Its working directory is the present one, from which it also imports, as a new process does.

        Raises: OSError if the server has ended, or if the working directory was removed.
        """
        sent = json.dumps({"module": module, "mark": mark, "folder": str(Path.cwd())}).encode()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._connection, [sent], [connection, leash, log, theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ForkedProcess(ours)

    def close(self) -> None:
        """End the server; its workers go on."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


def _read_environment(added: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in {**os.environ, **added}.items() if name not in _UNREAD}


class _Fork:
    """The side of the server: it forks until its connection is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # The connection on which the end of each worker is reported, by the worker's id.
        self._workers: dict[int, socket.socket] = {}
        # A byte arrives here when a worker has ended.
        self._ended, self._wakeup = socket.socketpair()

    def serve(self) -> tuple[str, int] | None:
        """Fork a worker at each request; return twice: in a worker its module and connection, in the server None."""
        self._wakeup.settimeout(0)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self._connection, self._ended], [], [])
            if self._ended in ready:
                self._ended.recv(_REQUEST_BYTES)
                self._report_ends()
            if self._connection in ready:
                received, descriptors, _, _ = socket.recv_fds(self._connection, _REQUEST_BYTES, _DESCRIPTORS)
                if not received:
                    return None
                asked = json.loads(received)
                if self._fork(asked["mark"], asked["folder"], descriptors):
                    return str(asked["module"]), descriptors[0]

    def _fork(self, mark: str, folder: str, descriptors: list[int]) -> bool:
        """Fork; return whether this is the worker."""
        connection, leash, log, status = descriptors
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of the threads of OpenBLAS.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            os.write(status, _NUMBER.pack(-(error.errno or errno.EAGAIN)))
            for descriptor in descriptors:
                os.close(descriptor)
            return False
        if pid:
            self._workers[pid] = socket.socket(fileno=status)
            for descriptor in (connection, leash, log):
                os.close(descriptor)
            return False
        self._leave()
        os.setsid()
        descendants.kill_on_close(leash, os.getpid())
        for output in (1, 2):
            os.dup2(log, output)
        os.close(log)
        descendants.set_mark(mark)
        os.chdir(folder)
        if not sys.flags.safe_path:  # else no process imports from its working directory
            sys.path[0] = folder
        os.write(status, _NUMBER.pack(os.getpid()))
        os.close(status)
        return True

    def _leave(self) -> None:
        """Give up, in a worker, what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in (self._connection, self._ended, self._wakeup, *self._workers.values()):
            one.close()

    def _report_ends(self) -> None:
        while self._workers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._workers.pop(pid) as connection, contextlib.suppress(BrokenPipeError):
                connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def main() -> None:
    """Import the modules that the command line names, and fork workers; in a worker, run its module as the program."""
    gc.disable()  # to look for garbage among what is imported takes 0.2 s
    for module in sys.argv[2:]:
        with contextlib.suppress(ImportError):  # the worker raises the error again, and its log has the message
            importlib.import_module(module)
    # What has been imported is never looked through again, so its pages stay shared.
    gc.freeze()
    gc.enable()
    worker = _Fork(socket.socket(fileno=int(sys.argv[1]))).serve()
    if worker is not None:
        module, connection = worker
        sys.argv[1:] = [str(connection)]
        sys.modules.pop(module, None)  # the module is run as the program, as by ``python -m``
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
