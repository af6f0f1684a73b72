"""The candidate workers of a run: the pool that starts, keeps and ends them, and the supervisor of each."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar

from attnbench.checks.catalogue import read_operator_checks
from attnbench.measurement.processor_time import limit_children
from attnbench.plugins.registry import PluginError, load_operator
from attnbench.processes.candidate_requests import (
    CandidateRequest,
    Declared,
    Defence,
    Describe,
    LoadImplementation,
    MeasurePass,
    Observe,
    Outcome,
    StartCandidate,
)
from attnbench.processes.fork_server import AVAILABLE, ForkServer
from attnbench.processes.request import Fault, Request
from attnbench.processes.rpc import Child, ChildDied, ChildTimeout
from attnbench.records.environment import count_cores, read_available_memory_bytes
from attnbench.records.outcome_facts import CannotLoad, Interrupted
from attnbench.runner.deaths import MEASURING, Deaths
from attnbench.words.findings import describe_fact

__all__ = ["CHECKING", "PATIENT", "TIMING", "CandidatePool", "Limits", "Supervisor", "WorkerKind"]

Reply = TypeVar("Reply")
# Environment variables of processes that time nothing: threads that wait for one another sleep instead of spinning.
# Sleeping is faster on a busy machine. In one measurement on two cores, while another process kept two threads
# spinning, the same work took 11 s with sleeping threads and 17 s with spinning threads.
PATIENT = {"OMP_WAIT_POLICY": "passive"}
# ``torch.autograd.grad`` imports this module at its first call, which takes 0.3 s.
IMPORTED_LATE = "torch.fx.experimental.symbolic_shapes"
# Default memory limit of a worker, as a fraction of the memory that is free when the worker starts. An allocation
# beyond the limit fails with a message. Without a limit, the system would kill a process, possibly an unrelated one.
MEMORY_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of time, memory and threads for one implementation."""

    # Largest wall time of one check on one case, or of one measurement, in seconds.
    timeout_s: float = 120.0
    # Bytes of address space that a worker may map in addition to what an idle worker maps; None: most of the memory
    # that is free when the worker starts. A number other than None also limits torch's allocator on a CUDA device.
    memory_bytes: int | None = None
    # Work limit: predicted time of one call, in seconds, above which a case is not started.
    work_s: float = 0.75
    # Threads of every worker; None: torch's default.
    threads: int | None = None

    def compute_memory_limit_bytes(self, parallel: int = 1) -> int | None:
        """Return the memory limit of a worker that starts now while ``parallel`` workers run.

        The limit is the number of bytes of address space that the worker may map in addition to what an idle worker
        maps. It is None if ``memory_bytes`` is None and the system does not report the free memory.
        """
        return self.memory_bytes or int(MEMORY_SHARE * read_available_memory_bytes() / parallel) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKind:
    """What a worker's process is made for."""

    # Environment variables of the process.
    environment: Mapping[str, str]
    # For a process that times implementations: the defences that are switched off, to measure what they find. None: the
    # process times nothing.
    timed_without: frozenset[Defence] | None = None

    @property
    def is_forked(self) -> bool:
        """Whether the process may be forked. Forked processes share addresses, on which times depend."""
        return self.timed_without is None

    @property
    def limits_cores(self) -> bool:
        """Whether the process may use only as many cores as it has threads."""
        return self.timed_without is not None and "processor" not in self.timed_without


# Workers that run checks, and workers that time with all defences.
CHECKING = WorkerKind(environment=PATIENT)
TIMING = WorkerKind(environment={}, timed_without=frozenset())


@dataclass(slots=True, kw_only=True)
class CandidatePool:
    """Starts the candidate workers of a run, keeps idle ones to be used again, and ends them."""

    limits: Limits
    # Module that the workers run, and further modules that a fork server imports.
    module: str
    imported: Sequence[str] = ()
    # Folder of the workers' files.
    folder: Path
    # What each loaded implementation declares; the key is the name given by the user.
    declared: dict[str, Declared]
    # Returns the environment variables of every worker besides those of its kind.
    find_variables: Callable[[], Mapping[str, str]] = dict
    # Servers that fork workers, by the environment variables of the workers.
    _fork_servers: dict[frozenset[tuple[str, str]], ForkServer] = field(init=False, default_factory=dict)
    # Workers that have not ended, and those of them that are idle and kept, by the names of their implementations.
    _running: "set[Supervisor]" = field(init=False, default_factory=set)
    _kept: "dict[tuple[str, ...], Supervisor]" = field(init=False, default_factory=dict)
    # Held while one of these is read or changed: several threads start and end workers.
    _lock: Lock = field(init=False, default_factory=Lock)
    # Numbers for the file names of the workers; each worker that starts takes the next number.
    _numbers: Iterator[int] = field(init=False, default_factory=count)

    def get(self, implementations: Sequence[str], kind: WorkerKind = CHECKING, *, parallel: int = 1) -> "Supervisor":
        """Return a worker that has loaded these implementations, while ``parallel`` workers run at a time.

        It is the kept worker, if it is of this kind and times nothing, or a new one.

        Raises: PluginError where an implementation cannot be loaded.
        """
        kind = replace(kind, environment={**kind.environment, **self.find_variables()})
        with self._lock:
            kept = self._kept.pop(tuple(implementations), None)
        if kept is not None and kept.can_be_used_again(kind):
            kept.limit_memory(parallel)
            return kept
        if kept is not None:
            kept.close()
        return Supervisor(self, implementations, kind, parallel=parallel)

    def keep(self, worker: "Supervisor") -> None:
        """Keep an idle worker for ``get``, until it is closed: to start another one takes up to 1.5 s.

        At most one worker with a single implementation per core is kept, because each takes memory. Further ones are
        closed.
        """
        with self._lock:
            alone = sum(len(implementations) == 1 for implementations in self._kept)
            is_kept = len(worker.implementations) > 1 or alone < count_cores()
            if is_kept:
                self._kept[worker.implementations] = worker
        if not is_kept:
            worker.close()

    def find(self, implementation: str) -> "Supervisor | None":
        """Return a kept worker that has loaded an implementation; it stays kept."""
        with self._lock:
            return next((one for names, one in self._kept.items() if implementation in names), None)

    def add(self, worker: "Supervisor") -> Path:
        """Add a worker that starts; return the prefix of the paths of its files."""
        with self._lock:
            self._running.add(worker)
            return self.folder / f"worker-{next(self._numbers)}"

    def remove(self, worker: "Supervisor") -> None:
        """Remove a worker that has ended."""
        with self._lock:
            self._running.discard(worker)
            if self._kept.get(worker.implementations) is worker:
                del self._kept[worker.implementations]

    def find_fork_server(self, environment: Mapping[str, str]) -> ForkServer | None:
        """Return the server that forks processes with these environment variables; None where none are forked.

        A server starts when it is first asked for.
        """
        if not AVAILABLE:
            return None
        with self._lock:
            key = frozenset(environment.items())
            if key not in self._fork_servers:
                self._fork_servers[key] = ForkServer(
                    [*self.imported, self.module, IMPORTED_LATE],
                    log=self.folder / f"fork-server-{len(self._fork_servers)}.log",
                    environment=environment,
                )
            return self._fork_servers[key]

    def close(self) -> None:
        """End all workers and fork servers."""
        with self._lock:
            running = list(self._running)
        for worker in running:
            worker.close()
        while self._fork_servers:
            self._fork_servers.popitem()[1].close()


class Supervisor:
    """Keeps a worker alive: restarts it after a death (a crash or a time-out), and sends nothing after many deaths."""

    def __init__(
        self,
        pool: CandidatePool,
        implementations: Sequence[str],
        kind: WorkerKind,
        *,
        parallel: int = 1,
    ) -> None:
        self._pool = pool
        self._kind = kind
        self._parallel = parallel
        self.implementations = tuple(implementations)
        # Prefix of the paths of this worker's files.
        self.path_prefix = pool.add(self)
        self.deaths = Deaths()
        self._child: Child | None = None
        self._closed = False
        self.declared: dict[str, Declared] = {}
        self.threads = 0
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def operator(self) -> str:
        """Operator that the implementation computes."""
        return self.declared[self.implementations[0]].operator

    def ask(
        self, request: CandidateRequest[Reply], *, counts: bool = True, shared_by: int = 1, most_s: float = math.inf
    ) -> Reply | Outcome:
        """Do what ``send`` does, for the types of request that every kind of candidate worker can answer."""
        return self.send(request, counts=counts, shared_by=shared_by, most_s=most_s)

    def send(
        self, request: Request[Reply], *, counts: bool = True, shared_by: int = 1, most_s: float = math.inf
    ) -> Reply | Outcome:
        """Send a request to the worker and return its reply; if there is no reply, return an outcome that says why.

        The request may be one that only one kind of worker answers.

        ``counts`` says whether a crash or a time-out counts toward the limits of ``Deaths``. A death does not count,
        for example, if the caller repeats the request to find the cause. The time-out is multiplied by ``shared_by``,
        the number of implementations in the request; it is at most ``most_s`` seconds.
        """
        if self._closed:
            return Outcome(status="not_run", facts=(Interrupted(),))
        case, checks = _find_subject(request)
        reason = self.deaths.find_reason(case, checks)
        if reason:
            return Outcome(status="not_run", facts=(reason,))
        try:
            answer = self._deliver(request, timeout_s=min(most_s, shared_by * self._pool.limits.timeout_s))
        except (ChildDied, ChildTimeout, PluginError) as error:
            self._child = None
            # A PluginError: the restarted worker cannot load the implementation.
            death = CannotLoad(message=str(error)) if isinstance(error, PluginError) else error.fact
            if counts:
                self.deaths.add(case, checks, death)
            return Outcome(status="timeout" if isinstance(error, ChildTimeout) else "crashed", facts=(death,))
        if checks:
            self.deaths.add(case, checks, None)
        return answer

    def _deliver(self, request: Request[Reply], *, timeout_s: float) -> Reply | Outcome:
        """Start the worker where none runs, and return its reply.

        Raises: ChildDied, ChildTimeout, PluginError.
        """
        if self._child is None:
            self._start()
        child = self._child
        if child is None:  # closed by another thread meanwhile
            return Outcome(status="not_run", facts=(Interrupted(),))
        return child.ask(request, timeout_s=timeout_s)

    def compute_memory_limit_bytes(self) -> int | None:
        """Return the memory limit, in bytes, that the worker would get if it started now; None if unknown."""
        return self._pool.limits.compute_memory_limit_bytes(self._parallel)

    def can_be_used_again(self, kind: WorkerKind) -> bool:
        """Whether the worker is of this kind, times nothing, and its process has not died."""
        return self._child is not None and not self.deaths.any and kind.timed_without is None and kind == self._kind

    def limit_memory(self, parallel: int) -> None:
        """Set the memory limits of a worker that is used again, while ``parallel`` workers run at a time."""
        self._parallel = parallel
        self.send(self._make_start(), counts=False)

    def renew(self) -> None:
        """End the worker's process; the next request starts a new process."""
        self._end()

    def measure_core_demand(self, window_s: float) -> float | None:
        """Measure how many cores the worker's threads need while no request is pending; None where not measurable."""
        return self._child.measure_core_demand(window_s) if self._child else None

    def close(self) -> None:
        """End the worker; a pending request in another thread returns, and later requests are not run."""
        self._closed = True
        self._end()
        self._pool.remove(self)
        # The worker's files contain observations, which may be large and are no longer needed.
        for file in self.path_prefix.parent.glob(f"{self.path_prefix.name}-*"):
            file.unlink(missing_ok=True)

    def _end(self) -> None:
        # Two threads may call this method at the same time. Only one of the threads gets the child.
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        """Start the worker and load the implementations; a process that cannot be used is ended.

        If the implementations declare further environment variables, the worker is started again with these.
        """
        environment = dict(self._kind.environment)
        for one in self.declared.values():
            environment |= one.environment
        while True:
            try:
                wanted = environment | self._start_process(environment)
            except BaseException:
                self._end()
                raise
            if wanted == environment:
                break
            self._end()
            environment = wanted
        if self._closed:  # another thread closed the worker while its process started
            self._end()

    def _start_process(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Start a process and load the implementations; return the environment variables that these declare.

        Raises: PluginError where an implementation cannot be loaded.
        """
        limits = self._pool.limits
        try:
            with limit_children(limits.threads) if self._kind.limits_cores else nullcontext():
                self._child = child = Child(
                    self._pool.module,
                    log=self.path_prefix.with_suffix(".log"),
                    environment=environment,
                    fork_server=self._find_fork_server(environment),
                )
            self.threads = child.ask(self._make_start())
            for name in self.implementations:
                self.declared[name] = self._pool.declared[name] = _load(child, name, limits.timeout_s)
        except (ChildDied, ChildTimeout) as error:
            raise PluginError(f"cannot load {', '.join(self.implementations)}: {describe_fact(error.fact)}") from error
        return {key: value for name in self.implementations for key, value in self.declared[name].environment.items()}

    def _find_fork_server(self, environment: Mapping[str, str]) -> ForkServer | None:
        """Return the server that forks this worker; None for a worker that times, and for declared variables.

        Variables that an implementation declares are those of few workers.
        """
        if not self._kind.is_forked or environment != self._kind.environment:
            return None
        return self._pool.find_fork_server(environment)

    def _make_start(self) -> StartCandidate:
        limits = self._pool.limits
        return StartCandidate(
            threads=limits.threads,
            memory_limit_bytes=self.compute_memory_limit_bytes(),
            device_memory_bytes=limits.memory_bytes,
            timed_without=self._kind.timed_without,
        )


def _find_subject(request: Request[Any]) -> tuple[str | None, Sequence[str]]:
    """Return the case of a request and what is asked about it: the checks, or ``MEASURING``, which counts as one."""
    match request:
        case Observe(case=case, checks=checks):
            return case, checks
        case MeasurePass(case=case):
            return case, (MEASURING,)
        case Describe(case=case):
            return case, ()
    return None, ()


def _load(child: Child, name: str, timeout_s: float) -> Declared:
    """Load an implementation in a candidate worker.

    Raises: PluginError where the implementation or its operator cannot be used; ChildDied or ChildTimeout where the
    worker crashes or exceeds the time-out.
    """
    loaded = child.ask(LoadImplementation(implementation=name), timeout_s=timeout_s)
    if isinstance(loaded, Fault):
        raise PluginError(loaded.reason)
    _check_operator(loaded.operator)
    return loaded


@cache
def _check_operator(name: str) -> None:
    """Check that an operator's description and checks can be used in this process, which does not import torch.

    Raises: PluginError where importing the description imports torch, or where a check has the name of another check.
    """
    read_operator_checks(load_operator(name))
