"""What a run has in common: its limits, its judge, its folder for tensors, and the workers that it starts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count, zip_longest
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

from attnbench.plugins.registry import PluginError
from attnbench.processes.rpc import Child, ChildDied, ChildTimeout
from attnbench.records.environment import memory_available_bytes
from attnbench.runner.scratch import Scratch

__all__ = ["PATIENT", "Limits", "Outcome", "Plan", "Session", "Supervisor"]

Outcome = dict[str, Any]
# Threads that wait for one another sleep instead of spinning: where nothing is timed, a busy machine then costs a run
# less (beside one process with two spinning threads on two cores: 11 s instead of 17 s).
PATIENT = {"OMP_WAIT_POLICY": "passive"}
# Deaths of one implementation's worker after which the rest of its cases is not run.
DEATHS = 3
# Share of the memory that is free as a worker starts which it may take where no limit was asked for: what takes all of
# it is refused in words, instead of making the system end some process, and not always the right one.
MEMORY_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one implementation may take."""

    # Wall time of one check on one case, or of one measurement.
    timeout_s: float = 120.0
    # Address space above what an idle worker has mapped; None: most of what is free as it starts. On a device, where it
    # is not None, what torch may take of its memory.
    memory_bytes: int | None = None
    # Predicted time of one call beyond which a case is not started.
    work_s: float = 0.75
    # Threads of every worker; None: torch's own choice.
    threads: int | None = None

    def memory_limit_bytes(self, beside: int = 1) -> int | None:
        """Address space for a worker that starts now, one of several that run at a time.

        None where the system does not say what is free.
        """
        return self.memory_bytes or int(MEMORY_SHARE * memory_available_bytes() / beside) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One case as it will be run."""

    case: str
    checks: tuple[str, ...]
    # What this machine lacks for it, with the remedy.
    missing: str | None
    flop: int
    # Bytes that go in and come out, by closed form; None: not known.
    bytes: int | None = None
    # All checks that speak of the case, whatever was asked for; empty: those that were.
    applicable: tuple[str, ...] = ()

    @property
    def operator(self) -> str:
        """Operator that the case belongs to."""
        return self.case.partition("/")[0]


@dataclass(slots=True)
class Session:
    """A judge and a folder, for as long as a run lasts."""

    limits: Limits = field(default_factory=Limits)
    # What the two kinds of processes run; a study that measures them has its own.
    judge_module: str = "attnbench.workers.oracle_worker"
    worker_module: str = "attnbench.workers.candidate_worker"
    folder: Path = field(init=False)
    # Threads and version of torch, as the judge's process has them.
    libraries: dict[str, Any] = field(init=False)
    # What every implementation that was loaded declares, by the name that it was asked for under.
    declared: dict[str, Outcome] = field(init=False, default_factory=dict)
    _judge: Child = field(init=False)
    # Implementations side by side share the judge, which answers one request at a time.
    _asking: Lock = field(init=False, default_factory=Lock)
    _scratch: Scratch = field(init=False)
    # Numbers of the workers.
    _numbers: Iterator[int] = field(init=False, default_factory=count)

    def __enter__(self) -> Self:
        self._scratch = Scratch()
        self.folder = self._scratch.path
        self._judge = Child(self.judge_module, log=self.folder / "judge.log", environment=PATIENT)
        self.libraries = self.judge("start", folder=str(self.folder))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._judge.kill()
        self._scratch.remove()

    def judge(self, do: str, **request: Any) -> Any:
        """Answer of the judge."""
        with self._asking:
            return self._judge.ask({"do": do, **request})

    def place(self) -> Path:
        """Path in the run's folder with which the names of a worker's files begin; nobody else has it."""
        return self.folder / f"worker-{next(self._numbers)}"

    def plan(self, cases: Iterable[str], checks: frozenset[str] | None = None) -> list[Plan]:
        """How each case will be run; ``checks`` keeps only some of the checks."""
        plans = []
        asked = list(cases)
        for case, described in zip(asked, self.judge("describe", cases=asked), strict=True):
            names = tuple(name for name in described["checks"] if checks is None or name in checks)
            if names:
                plans.append(
                    Plan(
                        case=case,
                        checks=names,
                        missing=described["missing"],
                        flop=described["work"]["flop"],
                        bytes=described["work"].get("bytes"),
                        applicable=tuple(described["checks"]),
                    )
                )
        return plans

    def supervise(
        self, implementation: str, environment: Mapping[str, str] = PATIENT, *, beside: int = 1
    ) -> "Supervisor":
        """Worker of one implementation, one of so many ``beside`` one another, with an environment of its own.

        Raises: PluginError where the implementation cannot be loaded.
        """
        return Supervisor(self, [implementation], environment, beside=beside)

    def supervised(
        self, implementations: Sequence[str], environment: Mapping[str, str] = PATIENT
    ) -> Iterator[tuple[str, "Supervisor"]]:
        """Worker of each implementation in turn; the next one starts while the present one is in use.

        Raises: PluginError where one cannot be loaded.
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
                # Left early: what was started ahead is ended, whether or not it could be loaded.
                if coming is not None and coming.exception() is None:
                    coming.result().close()

    def supervise_together(self, implementations: list[str]) -> "Supervisor":
        """One worker that holds several implementations, to time them in turns."""
        return Supervisor(self, implementations, {})


class Supervisor:
    """Keeps a worker alive: restarts it after a death, and gives up after the third."""

    def __init__(
        self, session: Session, implementations: list[str], environment: Mapping[str, str], *, beside: int = 1
    ) -> None:
        self._session = session
        self._environment = environment
        self._beside = beside
        # Where the names of this worker's files begin.
        self.place = session.place()
        self._implementations = implementations
        self._deaths = 0
        self._last_death = ""
        self._child: Child | None = None
        self._closed = False
        self.declared: dict[str, Outcome] = {}
        self.threads = 0
        self._start()

    @property
    def gave_up(self) -> str | None:
        """Why nothing more is run, or None."""
        if self._deaths < DEATHS:
            return None
        return f"its process ended {self._deaths} times, the last time: {self._last_death}"

    @property
    def operator(self) -> str:
        """Operator that the implementation computes."""
        return str(self.declared[self._implementations[0]]["operator"])

    def ask(self, do: str, *, counts: bool = True, shared_by: int = 1, **request: Any) -> Outcome:
        """Answer of the worker; a death, silence or having given up is an outcome with its reason.

        ``counts`` says whether a death is one of the three; one whose cause is looked for by asking again is not.
        ``shared_by`` is the number of implementations that the request is about: each may take the time-out.
        """
        if self._closed:
            return {"status": "not_run", "reason": "the run was left"}
        if self.gave_up:
            return {"status": "not_run", "reason": self.gave_up}
        try:
            if self._child is None:
                self._start()
            assert self._child is not None
            timeout_s = shared_by * self._session.limits.timeout_s
            answer: Outcome = self._child.ask({"do": do, **request}, timeout_s=timeout_s)
        except ChildDied as error:
            return self._buried("crashed", str(error), counts=counts)
        except ChildTimeout as error:
            return self._buried("timeout", f"{error} (--timeout)", counts=counts)
        except PluginError as error:  # it was loaded once, and cannot be loaded again after a death
            return self._buried("crashed", str(error), counts=counts)
        return answer

    def memory_limit_bytes(self) -> int | None:
        """Address space that the worker may take, if it starts now."""
        return self._session.limits.memory_limit_bytes(self._beside)

    def count_death(self, reason: str) -> None:
        """Count a death that was not counted when it was met."""
        self._deaths += 1
        self._last_death = reason

    def renew(self) -> None:
        """End the worker's process; the next question goes to a fresh one."""
        self._end()

    def cores_wanted(self, window_s: float) -> float | None:
        """Cores that the worker wants while nothing is asked of it; None where that cannot be known."""
        return self._child.cores_wanted(window_s) if self._child else None

    def close(self) -> None:
        """End the worker; another thread that waits for its answer gets one, and asks no more."""
        self._closed = True
        self._end()
        # What it saw is judged by now, and may be large.
        for file in self.place.parent.glob(f"{self.place.name}-*"):
            file.unlink(missing_ok=True)

    def _end(self) -> None:
        # Two threads may end it.
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _buried(self, status: str, reason: str, *, counts: bool) -> Outcome:
        if counts:
            self.count_death(reason)
        self._child = None
        return {"status": status, "reason": reason}

    def _start(self) -> None:
        """Start the worker and load the implementations, again in another environment where one asks for it."""
        environment = dict(self._environment)
        for one in self.declared.values():
            environment |= one["environment"]
        while True:
            limits = self._session.limits
            try:
                self._child = Child(
                    self._session.worker_module, log=self.place.with_suffix(".log"), environment=environment
                )
                self.threads = self._child.ask(
                    {
                        "do": "start",
                        "threads": limits.threads,
                        "memory_limit_bytes": self.memory_limit_bytes(),
                        "device_memory_bytes": limits.memory_bytes,
                    }
                )["threads"]
                wanted = dict(environment)
                for name in self._implementations:
                    opened = self._child.ask({"do": "open", "implementation": name}, timeout_s=limits.timeout_s)
                    if "fault" in opened:
                        self._end()
                        raise PluginError(opened["fault"])
                    self.declared[name] = self._session.declared[name] = opened
                    wanted |= opened["environment"]
            except (ChildDied, ChildTimeout) as error:
                raise PluginError(f"cannot load {', '.join(self._implementations)}: {error}") from error
            if wanted == environment:
                return
            self._end()
            environment = wanted
