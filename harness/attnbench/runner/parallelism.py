"""Implementations one after another, or several at a time where that changes nothing but the time that it takes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

from attnbench.records.environment import cores
from attnbench.runner.check_outcomes import TOGETHER_FLOP
from attnbench.runner.session import PATIENT, Plan, Session, Supervisor

__all__ = ["each", "lanes"]

T = TypeVar("T")


def lanes(plans: Iterable[Plan]) -> int:
    """How many implementations can run these cases at a time.

    As many as there are cores, where every case is a small one on the CPU. Large ones need all cores and all memory,
    and what fits must not depend on who else is running.
    """
    small = all(plan.flop <= TOGETHER_FLOP and "/cpu/" in plan.case for plan in plans)
    return cores() if small else 1


def each(
    session: Session,
    implementations: Sequence[str],
    job: Callable[[str, Supervisor], Iterator[T]],
    *,
    abreast: int = 1,
    environment: Mapping[str, str] = PATIENT,
) -> Iterator[T]:
    """What a job yields of each implementation and its worker, as soon as it does; so many implementations abreast.

    Raises: PluginError where an implementation cannot be loaded, and whatever a job raises.
    """
    if abreast > 1 and len(implementations) > 1:
        yield from _abreast(session, implementations, job, abreast, environment)
        return
    for name, worker in session.supervised(implementations, environment):
        yield from job(name, worker)


def _abreast(
    session: Session,
    implementations: Sequence[str],
    job: Callable[[str, Supervisor], Iterator[T]],
    abreast: int,
    environment: Mapping[str, str],
) -> Iterator[T]:
    made: SimpleQueue[T | Future[None]] = SimpleQueue()
    workers: list[Supervisor] = []
    left_early = Event()

    def run(name: str) -> None:
        with session.supervise(name, environment, beside=abreast) as worker:
            workers.append(worker)
            for one in job(name, worker):
                if left_early.is_set():
                    return
                made.put(one)

    with ThreadPoolExecutor(max_workers=abreast) as pool:
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
            # Whoever waits for an answer gets one, and ends.
            for worker in workers:
                worker.close()
