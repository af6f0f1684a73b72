"""Implementations side by side: all that they yield arrives, nobody waits for nothing, nobody is left behind."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier, Lock
from typing import Any

import pytest

from attnbench.records.environment import count_cores
from attnbench.runner import NoProgress, Plan, Session, conform
from attnbench.runner.parallelism import count_parallel_lanes, run_each

NAMES = ["one", "two", "three", "four", "five"]
PLAN = Plan(case="multihead/b1.s2/-/mask=none/regime=normal/seed=0/float32/cpu/train", checks=(), missing=None, flop=10)
# Time after which threads that should have met never will, in seconds.
PATIENCE_S = 20.0


class Worker:
    """Supervisor that can be closed."""

    def __init__(self, name: str, parallel: int) -> None:
        self.name, self.parallel, self.closed = name, parallel, False

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self.closed = True


@dataclass
class Started:
    """Session that knows whom it started."""

    workers: list[Worker] = field(default_factory=list)

    def supervise(self, name: str, environment: Any, *, parallel: int) -> Worker:
        """A worker."""
        self.workers.append(Worker(name, parallel))
        return self.workers[-1]


def test_two_at_a_time_and_no_more() -> None:
    """Pairs of implementations meet; there are never three; every result arrives once."""
    meeting, counting = Barrier(2), Lock()
    at_work: list[str] = []
    most = 0

    def job(name: str, worker: Any) -> Iterator[tuple[str, int]]:
        nonlocal most
        assert worker.name == name
        with counting:
            at_work.append(name)
            most = max(most, len(at_work))
        meeting.wait(PATIENCE_S)
        yield name, 0
        yield name, 1
        with counting:
            at_work.remove(name)

    session = Started()
    found = list(run_each(session, NAMES[:4], job, parallel=2))  # type: ignore[arg-type]
    assert sorted(found) == sorted((name, number) for name in NAMES[:4] for number in (0, 1))
    assert most == 2
    assert {worker.parallel for worker in session.workers} == {2}
    assert all(worker.closed for worker in session.workers)


def test_what_a_job_raises_reaches_the_caller_and_ends_the_others() -> None:
    """Nobody goes on for a caller who is gone."""
    session = Started()

    def job(name: str, worker: Any) -> Iterator[str]:
        if name == "one":
            raise ValueError(name)
        # Endless, until the worker is closed.
        while not worker.closed:
            time.sleep(0.001)
            yield name

    with pytest.raises(ValueError, match="one"):
        list(run_each(session, NAMES, job, parallel=2))  # type: ignore[arg-type]
    assert all(worker.closed for worker in session.workers)


def test_who_leaves_early_leaves_nothing_running() -> None:
    """The first result is enough: those at work end, those that wait are never started."""
    session = Started()

    def job(name: str, worker: Any) -> Iterator[str]:
        while not worker.closed:
            time.sleep(0.001)
            yield name

    results = run_each(session, NAMES, job, parallel=2)  # type: ignore[arg-type]
    assert next(results) in NAMES[:2]
    results.close()  # type: ignore[attr-defined]
    assert len(session.workers) <= 2
    assert all(worker.closed for worker in session.workers)


@pytest.mark.parametrize(
    ("odd", "parallel"),
    [(PLAN, count_cores()), (replace(PLAN, flop=10**13), 1), (replace(PLAN, case=PLAN.case.replace("cpu", "cuda")), 1)],
    ids=["small", "large", "cuda"],
)
def test_only_small_cases_run_side_by_side(odd: Plan, parallel: int) -> None:
    """One that needs all cores, all memory or the device is enough."""
    assert count_parallel_lanes([PLAN, odd, PLAN]) == parallel


def test_each_is_told_of_its_own_end(tmp_path: Path) -> None:
    """Two that end their processes at the same time, with a last word: neither gets the other's."""
    own = tmp_path / "own.py"
    own.write_text(
        "import os, sys, time\n"
        "def ending(word):\n"
        "    def call(*inputs, **named):\n"
        "        for _ in range(100):\n"
        "            print(word, flush=True)\n"
        "            time.sleep(0.002)\n"
        "        os._exit(3)\n"
        "    return call\n"
        "LEFT, RIGHT = ending('left'), ending('right')\n"
    )
    with Session() as session:
        listed = session.ask_oracle("suite", operator="multihead", level="quick")
        plans = [replace(plan, checks=plan.checks[:1]) for plan in session.plan(listed[:1])]
        results = list(conform(session, [f"{own}:LEFT", f"{own}:RIGHT"], plans, run="r", progress=NoProgress()))
    told = {result.implementation.rpartition(":")[2]: result.findings[0].reason for result in results}
    assert {name: reason.rpartition("(")[2] for name, reason in told.items()} == {"LEFT": "left)", "RIGHT": "right)"}
