"""Run implementations one after another, or several in parallel where this changes only the run time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

from attnbench.cases import CaseId
from attnbench.records.environment import count_cores
from attnbench.runner.check_outcomes import TOGETHER_FLOP
from attnbench.runner.session import PATIENT, Plan, Session, Supervisor

__all__ = ["count_parallel_lanes", "run_each"]

T = TypeVar("T")


def count_parallel_lanes(plans: Iterable[Plan]) -> int:
    """Return the number of implementations that can run these cases in parallel.

    This is the number of cores if every case is small and on the CPU, otherwise 1. A large case needs all cores and all
    memory. It runs alone; if it runs out of memory, no other implementation can be the cause.
    """
    small = all(plan.flop <= TOGETHER_FLOP and CaseId.parse(plan.case).device == "cpu" for plan in plans)
    return count_cores() if small else 1


def run_each(
    session: Session,
    implementations: Sequence[str],
    job: Callable[[str, Supervisor], Iterator[T]],
    *,
    parallel: int = 1,
    environment: Mapping[str, str] = PATIENT,
) -> Iterator[T]:
    """Yield what ``job`` yields for each implementation and its worker; ``parallel`` implementations run at a time.

    Raises: PluginError where an implementation cannot be loaded; any exception that a job raises.
    """
    if parallel > 1 and len(implementations) > 1:
        yield from _run_in_parallel(session, implementations, job, parallel, environment)
        return
    for name, worker in session.supervise_each(implementations, environment):
        yield from job(name, worker)


def _run_in_parallel(
    session: Session,
    implementations: Sequence[str],
    job: Callable[[str, Supervisor], Iterator[T]],
    parallel: int,
    environment: Mapping[str, str],
) -> Iterator[T]:
    made: SimpleQueue[T | Future[None]] = SimpleQueue()
    workers: list[Supervisor] = []
    left_early = Event()

    def run(name: str) -> None:
        with session.supervise(name, environment, parallel=parallel) as worker:
            workers.append(worker)
            for one in job(name, worker):
                if left_early.is_set():
                    return
                made.put(one)

    with ThreadPoolExecutor(max_workers=parallel) as pool:
        running = [pool.submit(run, name) for name in implementations]
        for future in running:
            future.add_done_callback(made.put)
        try:
            left = len(running)
            while left:
                one = made.get()
                if isinstance(one, Future):
                    one.result()
                    left -= 1
                else:
                    yield one
        finally:
            for future in running:
                future.cancel()
            left_early.set()
            # A thread may still wait for its worker's reply. When the worker is closed, the wait and the thread end.
            for worker in workers:
                worker.close()
