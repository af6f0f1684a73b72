"""The shared parts of a run: its limits, its oracle worker, its temporary folder, and the pool of its workers."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self, TypeVar

from attnbench.cases import COMPILED_MODES, CaseId
from attnbench.oracle.disk_cache import CACHE_FAULT, find_folder, ignore_fault
from attnbench.processes.candidate_requests import Declared, Rates
from attnbench.processes.oracle_requests import DescribeCases, Libraries, OracleRequest, StartOracle
from attnbench.processes.rpc import Child
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import MissingData
from attnbench.runner.candidate_pool import PATIENT, CandidatePool, Limits
from attnbench.runner.scratch import Scratch

__all__ = ["Plan", "Session"]

Reply = TypeVar("Reply")


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
    # The run's candidate workers.
    workers: CandidatePool = field(init=False)
    _oracle: Child = field(init=False)
    # The oracle worker's first answer. While the worker starts, a candidate worker can start, too.
    _started: Future[Libraries] = field(init=False)
    # Lock of the oracle worker: implementations that run in parallel share it, and it answers one request at a time.
    _asking: Lock = field(init=False, default_factory=Lock)
    # What is done at the end of the run.
    _at_end: ExitStack = field(init=False)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            scratch = Scratch()
            self.folder = scratch.path
            stack.callback(scratch.remove)
            stack.callback(self._report_cache_fault)
            self.workers = CandidatePool(
                limits=self.limits,
                module=self.worker_module,
                imported=[self.oracle_module],
                folder=self.folder,
                declared=self.declared,
                find_variables=self.find_variables,
            )
            stack.callback(self.workers.close)
            self._oracle = Child(
                self.oracle_module,
                log=self.folder / "oracle.log",
                environment=PATIENT,
                fork_server=self.workers.find_fork_server(PATIENT),
            )
            stack.callback(self._oracle.kill)
            cache_folder = str(self.cache_folder) if self.cache_folder else None
            start = StartOracle(folder=str(self.folder), cache_folder=cache_folder)
            starting = ThreadPoolExecutor(max_workers=1)
            self._started = starting.submit(self._oracle.ask, start)
            starting.shutdown(wait=False)
            self._at_end = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._at_end.close()

    def _report_cache_fault(self) -> None:
        fault = self.folder / CACHE_FAULT
        if fault.exists():
            self.report_cache_fault(fault.read_text())

    def find_variables(self) -> Mapping[str, str]:
        """Return the environment variables of all candidate workers besides those of their kinds."""
        return {}

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
