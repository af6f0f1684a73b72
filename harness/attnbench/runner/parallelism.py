"""Run implementations one after another, or in parallel where this changes only the run time."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

from attnbench.cases import CaseId
from attnbench.devices import HOST
from attnbench.records.environment import count_cores
from attnbench.runner.candidate_pool import CHECKING, Supervisor, WorkerKind
from attnbench.runner.check_outcomes import TOGETHER_FLOP
from attnbench.runner.session import Plan, Session

__all__ = ["Share", "count_parallel_lanes", "divide", "run_each"]

T = TypeVar("T")
# An implementation, and cases that one of its workers runs.
Share = tuple[str, Sequence[Plan]]
# Smallest mean number of cases per worker, if several workers share an implementation's cases. A worker takes about
# 0.3 s of processor time to start, load an implementation and end, where it is forked from a process that has imported
# torch, and about 0.06 s for a case of the lists ``quick`` and ``core``.
FEWEST_CASES = 15
# Time of a compiled case of the list ``core``, as a multiple of the time of another case.
COMPILATION = 35


def count_parallel_lanes(plans: Iterable[Plan]) -> int:
    """Return the number of workers that can run these cases in parallel.

    This is the number of cores if every case is small and on the CPU, otherwise 1. A large case needs all cores and all
    memory. It runs alone; if it runs out of memory, no other implementation can be the cause.
    """
    small = all(plan.flop <= TOGETHER_FLOP and CaseId.parse(plan.case).device == HOST for plan in plans)
    return count_cores() if small else 1


def divide(shares: Iterable[Share], parallel: int) -> list[Share]:
    """Divide the cases of each implementation into shares; each share has a worker of its own.

    Together, the implementations have about two shares for each of the ``parallel`` lanes, so that the lanes end at
    about the same time. An implementation has at most ``parallel`` shares, at most one for every ``FEWEST_CASES``
    cases, and at least one.
    """
    whole = list(shares)
    parts = min(parallel, math.ceil(2 * parallel / max(len(whole), 1)))
    return [
        (name, part)
        for name, plans in whole
        for part in _divide_plans(plans, max(1, min(parts, len(plans) // FEWEST_CASES)))
    ]


def _divide_plans(plans: Sequence[Plan], count: int) -> list[list[Plan]]:
    """Divide cases into ``count`` parts that take about the same time.

    All compiled cases are in the first part, since importing a compiler takes a worker as long as two compilations. The
    other cases are dealt out one by one, because neighbours in a list take about the same time.
    """
    parts: list[list[Plan]] = [[] for _ in range(count)]
    compiled = sum(plan.is_compiled for plan in plans)
    fair = (compiled * COMPILATION + len(plans) - compiled) / count
    # Weight of each part: how many cases that are not compiled it should get.
    room = [max(fair - compiled * COMPILATION, 0.0), *[fair] * (count - 1)]
    dealt = [0] * count
    for plan in plans:
        place = 0
        if not plan.is_compiled:
            place = min(range(count), key=lambda part: (dealt[part] + 1) / room[part] if room[part] else math.inf)
            dealt[place] += 1
        parts[place].append(plan)
    return parts


def run_each(
    session: Session,
    shares: Sequence[Share],
    job: Callable[[str, Sequence[Plan], Supervisor], Iterator[T]],
    *,
    parallel: int = 1,
    kind: WorkerKind = CHECKING,
) -> Iterator[T]:
    """Yield what ``job`` yields for each share and a worker of its implementation; ``parallel`` shares run at a time.

    Raises: PluginError where an implementation cannot be loaded; any exception that a job raises.
    """
    if parallel > 1 and len(shares) > 1:
        yield from _run_in_parallel(session, shares, job, parallel, kind)
    else:
        yield from _run_in_turn(session, shares, job, kind)


def _run_in_turn(
    session: Session,
    shares: Sequence[Share],
    job: Callable[[str, Sequence[Plan], Supervisor], Iterator[T]],
    kind: WorkerKind,
) -> Iterator[T]:
    """Run one share after the other; the worker of the next share starts while the current one is in use."""
    coming: Future[Supervisor] | None = None
    with ThreadPoolExecutor(max_workers=1) as ahead:
        try:
            for (name, plans), following in zip_longest(shares, shares[1:]):
                worker = coming.result() if coming else session.workers.get([name], kind)
                coming = ahead.submit(session.workers.get, [following[0]], kind) if following else None
                with worker:
                    yield from job(name, plans, worker)
        finally:
            # If the caller stops iterating early, the next worker may have been started already. It is closed here.
            if coming is not None and coming.exception() is None:
                coming.result().close()


def _run_in_parallel(
    session: Session,
    shares: Sequence[Share],
    job: Callable[[str, Sequence[Plan], Supervisor], Iterator[T]],
    parallel: int,
    kind: WorkerKind,
) -> Iterator[T]:
    made: SimpleQueue[T | Future[None]] = SimpleQueue()
    workers: list[Supervisor] = []
    left_early = Event()

    def run(name: str, plans: Sequence[Plan]) -> None:
        with session.workers.get([name], kind, parallel=parallel) as worker:
            workers.append(worker)
            for one in job(name, plans, worker):
                if left_early.is_set():
                    return
                made.put(one)

    with ThreadPoolExecutor(max_workers=parallel) as pool:
        running = [pool.submit(run, *share) for share in shares]
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
