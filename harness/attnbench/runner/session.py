"""The shared parts of a run: its limits, its oracle worker, its temporary folder, and the workers that it starts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import count, zip_longest
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self, TypeVar

from attnbench.cases import COMPILED_MODES, CaseId
from attnbench.checks.catalogue import read_operator_checks
from attnbench.measurement.processor_time import limit_children
from attnbench.oracle.disk_cache import CACHE_FAULT, find_folder, ignore_fault
from attnbench.plugins.registry import PluginError, load_operator
from attnbench.processes.candidate_requests import (
    CandidateRequest,
    Declared,
    Defence,
    LoadImplementation,
    Outcome,
    Rates,
    StartCandidate,
)
from attnbench.processes.fork_server import AVAILABLE, ForkServer
from attnbench.processes.oracle_requests import DescribeCases, Libraries, OracleRequest, StartOracle
from attnbench.processes.request import Fault, Request
from attnbench.processes.rpc import Child, ChildDied, ChildTimeout
from attnbench.records.environment import count_cores, read_available_memory_bytes
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import CannotLoad, Death, Interrupted, MissingData, TooManyDeaths
from attnbench.records.types import Status
from attnbench.runner.scratch import Scratch
from attnbench.words.findings import describe_fact

__all__ = ["MOST_DEATHS", "PATIENT", "Limits", "Plan", "Session", "Supervisor"]

Reply = TypeVar("Reply")
# Environment variables of processes that time nothing: threads that wait for one another sleep instead of spinning.
# Sleeping is faster on a busy machine. In one measurement on two cores, while another process kept two threads
# spinning, the same work took 11 s with sleeping threads and 17 s with spinning threads.
PATIENT = {"OMP_WAIT_POLICY": "passive"}
# ``torch.autograd.grad`` imports this module at its first call, which takes 0.3 s.
IMPORTED_LATE = "torch.fx.experimental.symbolic_shapes"
# Number of crashes and time-outs of one implementation's worker after which the remaining cases are not run.
MOST_DEATHS = 3
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
class Plan:
    """One case as it will be run."""

    case: str
    checks: tuple[str, ...]
    # What this machine lacks to run the case; None if nothing is missing.
    missing: Fact | None
    flop: int
    # Bytes of the inputs and outputs, computed by a formula; None if not known.
    bytes: int | None = None
    # Number of query-key pairs in all sequences and heads, and of runs of the rounding model that the expected values
    # need.
    pairs: int = 0
    model_runs: int = 0
    # All checks that apply to the case, before any filter. If empty, ``checks`` are all checks that apply.
    applicable: tuple[str, ...] = ()

    @property
    def operator(self) -> str:
        """Operator that the case belongs to."""
        return CaseId.parse(self.case).operator

    @property
    def lacks_data(self) -> bool:
        """Whether this machine lacks an optional data set or package of the operator, and not a device or memory."""
        return isinstance(self.missing, MissingData)

    @property
    def is_compiled(self) -> bool:
        """Whether the case calls a compiled module."""
        return CaseId.parse(self.case).mode in COMPILED_MODES


@dataclass(slots=True)
class Session:
    """The oracle worker and the temporary folder of a run; a context manager."""

    limits: Limits = field(default_factory=Limits)
    # Modules that the oracle worker and the candidate workers run. Studies of the harness itself pass other modules.
    oracle_module: str = "attnbench.workers.oracle_worker"
    worker_module: str = "attnbench.workers.candidate_worker"
    # Folder of the cache of expected values; None: the run uses no cache, and computes all expected values.
    cache_folder: Path | None = field(default_factory=find_folder)
    # Called at the end of the run with the first fault of the cache of expected values, if the cache had a fault.
    report_cache_fault: Callable[[str], None] = ignore_fault
    folder: Path = field(init=False)
    # Cases of the whole lists of which this run has a part (--shard).
    whole_lists: list[str] = field(init=False, default_factory=list)
    # What each loaded implementation declares; the key is the name given by the user.
    declared: dict[str, Declared] = field(init=False, default_factory=dict)
    # Highest rates of this machine that were measured in this session, by device and dtype.
    rates: dict[tuple[str, str], Rates] = field(init=False, default_factory=dict)
    _oracle: Child = field(init=False)
    # The oracle worker's first answer. While the worker starts, a candidate worker can start, too.
    _started: Future[Libraries] = field(init=False)
    # Lock of the oracle worker: implementations that run in parallel share it, and it answers one request at a time.
    _asking: Lock = field(init=False, default_factory=Lock)
    # Servers that fork workers, by the environment variables of the workers; and the lock of this dictionary.
    _fork_servers: dict[frozenset[tuple[str, str]], ForkServer] = field(init=False, default_factory=dict)
    _starting: Lock = field(init=False, default_factory=Lock)
    _scratch: Scratch = field(init=False)
    # Idle workers that have loaded several implementations, which can be asked what these declare about cases.
    _loaded: "list[Supervisor]" = field(init=False, default_factory=list)
    # Idle workers that have loaded one implementation, by the implementation's name.
    _kept: "dict[str, Supervisor]" = field(init=False, default_factory=dict)
    # Numbers for the file names of the candidate workers; each worker that starts takes the next number.
    _numbers: Iterator[int] = field(init=False, default_factory=count)

    def __enter__(self) -> Self:
        self._scratch = Scratch()
        self.folder = self._scratch.path
        self._oracle = Child(
            self.oracle_module,
            log=self.folder / "oracle.log",
            environment=PATIENT,
            fork_server=self.find_fork_server(PATIENT),
        )
        cache_folder = str(self.cache_folder) if self.cache_folder else None
        start = StartOracle(folder=str(self.folder), cache_folder=cache_folder)
        starting = ThreadPoolExecutor(max_workers=1)
        self._started = starting.submit(self._oracle.ask, start)
        starting.shutdown(wait=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_loaded()
        while self._kept:
            self._kept.popitem()[1].close()
        self._oracle.kill()
        while self._fork_servers:
            self._fork_servers.popitem()[1].close()
        fault = self.folder / CACHE_FAULT
        if fault.exists():
            self.report_cache_fault(fault.read_text())
        self._scratch.remove()

    def find_fork_server(self, environment: Mapping[str, str]) -> ForkServer | None:
        """Return the server that forks workers with these environment variables; None where workers are not forked.

        A server starts when it is first asked for.
        """
        if not AVAILABLE:
            return None
        with self._starting:
            key = frozenset(environment.items())
            if key not in self._fork_servers:
                self._fork_servers[key] = self.start_fork_server(environment)
            return self._fork_servers[key]

    def start_fork_server(self, environment: Mapping[str, str]) -> ForkServer:
        """Start a server that forks workers with these environment variables."""
        return ForkServer(
            [self.oracle_module, self.worker_module, IMPORTED_LATE],
            log=self.folder / f"fork-server-{len(self._fork_servers)}.log",
            environment=environment,
        )

    @property
    def libraries(self) -> Libraries:
        """Number of threads and version of torch in the oracle worker.

        Raises: ChildDied.
        """
        return self._started.result()

    def ask_oracle(self, request: OracleRequest[Reply]) -> Reply:
        """Send a request to the oracle worker and return its reply.

        Raises: ChildDied.
        """
        with self._asking:
            self._started.result()
            return self._oracle.ask(request)

    def reserve_path_prefix(self) -> Path:
        """Return a new path in the run's folder, as the prefix of the paths of one worker's files."""
        return self.folder / f"worker-{next(self._numbers)}"

    def plan(self, cases: Iterable[str], checks: frozenset[str] | None = None) -> list[Plan]:
        """Return a plan for each case that has checks; ``checks``, if given, selects among the checks of the cases."""
        plans = []
        asked = list(cases)
        for case, described in zip(asked, self.ask_oracle(DescribeCases(cases=asked)), strict=True):
            names = tuple(name for name in described.checks if checks is None or name in checks)
            if names:
                plans.append(
                    Plan(
                        case=case,
                        checks=names,
                        missing=described.missing,
                        flop=described.work.flop,
                        bytes=described.work.bytes,
                        pairs=described.work.pairs,
                        model_runs=described.model_runs,
                        applicable=described.checks,
                    )
                )
        return plans

    def supervise(
        self, implementation: str, environment: Mapping[str, str] = PATIENT, *, parallel: int = 1
    ) -> "Supervisor":
        """Return a worker of one implementation with these environment variables; ``parallel`` workers run at a time.

        It is the kept worker, if it has these variables, or a new one.

        Raises: PluginError where the implementation cannot be loaded.
        """
        kept = self._kept.pop(implementation, None)
        if kept is not None and kept.can_be_used_again(environment):
            kept.limit_memory(parallel)
            return kept
        if kept is not None:
            kept.close()
        return Supervisor(self, [implementation], environment, parallel=parallel)

    def keep(self, implementation: str, worker: "Supervisor") -> None:
        """Keep an idle worker of one implementation for ``supervise``: to start another one takes up to 1.5 s.

        At most one worker per core is kept, because each takes memory. Further ones are closed.
        """
        if len(self._kept) < count_cores():
            self._kept[implementation] = worker
        else:
            worker.close()

    def keep_loaded(self, worker: "Supervisor") -> None:
        """Keep an idle worker that has loaded several implementations, until ``close_loaded``."""
        self._loaded.append(worker)

    def find_loaded(self, implementation: str) -> "Supervisor | None":
        """Return a worker that was kept by ``keep_loaded`` and has loaded this implementation."""
        return next((worker for worker in self._loaded if implementation in worker.declared), None)

    def close_loaded(self) -> None:
        """End the workers that were kept by ``keep_loaded``."""
        while self._loaded:
            self._loaded.pop().close()

    def supervise_each(
        self, implementations: Sequence[str], environment: Mapping[str, str] = PATIENT
    ) -> Iterator[tuple[str, "Supervisor"]]:
        """Yield the worker of each implementation; the next worker starts while the current one is in use.

        Raises: PluginError where an implementation cannot be loaded.
        """
        coming = None
        with ThreadPoolExecutor(max_workers=1) as ahead:
            try:
                for name, following in zip_longest(implementations, implementations[1:]):
                    worker = coming.result() if coming else self.supervise(name, environment)
                    coming = ahead.submit(self.supervise, following, environment) if following else None
                    with worker:
                        yield name, worker
            finally:
                # If the caller stops iterating early, the next worker may have been started already. It is closed here.
                if coming is not None and coming.exception() is None:
                    coming.result().close()

    def supervise_together(
        self, implementations: list[str], *, without: frozenset[Defence] = frozenset()
    ) -> "Supervisor":
        """Start one worker that loads several implementations, for interleaved timing.

        ``without`` names defences of the timing that are switched off.
        """
        return Supervisor(self, implementations, {}, timed_without=without)

    def supervise_several(self, implementations: list[str], environment: Mapping[str, str] = PATIENT) -> "Supervisor":
        """Start one worker that loads several implementations, and times none."""
        return Supervisor(self, implementations, environment)


class Supervisor:
    """Keeps a worker alive: restarts it after a death (a crash or a time-out), and gives up after the third death."""

    def __init__(
        self,
        session: Session,
        implementations: list[str],
        environment: Mapping[str, str],
        *,
        parallel: int = 1,
        timed_without: frozenset[Defence] | None = None,
    ) -> None:
        self._session = session
        self._environment = environment
        self._parallel = parallel
        self._timed_without = timed_without
        # Prefix of the paths of this worker's files.
        self.path_prefix = session.reserve_path_prefix()
        self._implementations = implementations
        self._deaths = 0
        self._last_death: Death | None = None
        self._child: Child | None = None
        self._closed = False
        self.declared: dict[str, Declared] = {}
        self.threads = 0
        self._start()

    @property
    def gave_up(self) -> TooManyDeaths | None:
        """Why the worker gets no further request, or None if it still gets requests."""
        if self._deaths < MOST_DEATHS or self._last_death is None:
            return None
        return TooManyDeaths(count=self._deaths, last=self._last_death)

    @property
    def operator(self) -> str:
        """Operator that the implementation computes."""
        return self.declared[self._implementations[0]].operator

    def ask(self, request: CandidateRequest[Reply], *, counts: bool = True, shared_by: int = 1) -> Reply | Outcome:
        """Do what ``send`` does, for the types of request that every kind of candidate worker can answer."""
        return self.send(request, counts=counts, shared_by=shared_by)

    def send(self, request: Request[Reply], *, counts: bool = True, shared_by: int = 1) -> Reply | Outcome:
        """Send a request to the worker and return its reply; if there is no reply, return an outcome that says why.

        Requests that only one kind of worker answers are sent by the client of this worker, such as
        ``MaxLengthClient``.

        ``counts`` says whether a crash or a time-out counts toward the limit of three. A death does not count, for
        example, if the caller repeats the request to find the cause. The time-out is multiplied by ``shared_by``, the
        number of implementations in the request.
        """
        if self._closed:
            return Outcome(status="not_run", facts=(Interrupted(),))
        if self.gave_up:
            return Outcome(status="not_run", facts=(self.gave_up,))
        try:
            if self._child is None:
                self._start()
            assert self._child is not None
            return self._child.ask(request, timeout_s=shared_by * self._session.limits.timeout_s)
        except ChildDied as error:
            return self._record_death("crashed", error.fact, counts=counts)
        except ChildTimeout as error:
            return self._record_death("timeout", error.fact, counts=counts)
        except PluginError as error:  # the restarted worker cannot load the implementation
            return self._record_death("crashed", CannotLoad(message=str(error)), counts=counts)

    def compute_memory_limit_bytes(self) -> int | None:
        """Return the memory limit, in bytes, that the worker would get if it started now; None if unknown."""
        return self._session.limits.compute_memory_limit_bytes(self._parallel)

    def can_be_used_again(self, environment: Mapping[str, str]) -> bool:
        """Whether the worker has these environment variables, and its process has not died."""
        alive = self._child is not None and not self._deaths
        return alive and self._timed_without is None and dict(self._environment) == dict(environment)

    def limit_memory(self, parallel: int) -> None:
        """Set the memory limits of a worker that is used again, while ``parallel`` workers run at a time."""
        self._parallel = parallel
        self.send(self._make_start(), counts=False)

    def count_death(self, death: Death) -> None:
        """Count a crash or a time-out that was not counted when it happened (``ask`` with ``counts=False``)."""
        self._deaths += 1
        self._last_death = death

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

    def _record_death(self, status: Status, death: Death, *, counts: bool) -> Outcome:
        if counts:
            self.count_death(death)
        self._child = None
        return Outcome(status=status, facts=(death,))

    def _start(self) -> None:
        """Start the worker and load the implementations.

        If the implementations declare further environment variables, the worker is started again with these.
        """
        environment = dict(self._environment)
        for one in self.declared.values():
            environment |= one.environment
        while True:
            try:
                with limit_children(self._session.limits.threads if self._limits_cores() else None):
                    self._child = Child(
                        self._session.worker_module,
                        log=self.path_prefix.with_suffix(".log"),
                        environment=environment,
                        fork_server=self._find_fork_server(environment),
                    )
                self.threads = self._child.ask(self._make_start())
                wanted = dict(environment)
                for name in self._implementations:
                    loaded = _load(self._child, name, self._session.limits.timeout_s)
                    self.declared[name] = self._session.declared[name] = loaded
                    wanted |= loaded.environment
            except PluginError:
                self._end()
                raise
            except (ChildDied, ChildTimeout) as error:
                raise PluginError(
                    f"cannot load {', '.join(self._implementations)}: {describe_fact(error.fact)}"
                ) from error
            if wanted == environment:
                return
            self._end()
            environment = wanted

    def _find_fork_server(self, environment: Mapping[str, str]) -> ForkServer | None:
        """Return the server that forks this worker; None for a worker that times, and for declared variables.

        Forked processes share addresses, on which times depend. Variables that an implementation declares are those of
        few workers.
        """
        if self._timed_without is not None or environment != self._environment:
            return None
        return self._session.find_fork_server(environment)

    def _limits_cores(self) -> bool:
        """Whether the worker may use only as many cores as it has threads."""
        return self._timed_without is not None and "processor" not in self._timed_without

    def _make_start(self) -> StartCandidate:
        limits = self._session.limits
        return StartCandidate(
            threads=limits.threads,
            memory_limit_bytes=self.compute_memory_limit_bytes(),
            device_memory_bytes=limits.memory_bytes,
            timed_without=self._timed_without,
        )


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
