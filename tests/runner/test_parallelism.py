"""Tests of ``run_each``, which checks implementations in parallel: all results arrive, and every worker is closed."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier, Lock
from typing import Any

import pytest

from attnbench.cases import CaseId
from attnbench.processes.oracle_requests import ListSuite
from attnbench.records.environment import count_cores
from attnbench.records.outcome_facts import Crashed
from attnbench.runner import NoProgress, Plan, Session, conform
from attnbench.runner.parallelism import COMPILATION, FEWEST_CASES, count_parallel_lanes, divide, run_each

NAMES = ["one", "two", "three", "four", "five"]
PLAN = Plan(case="multihead/b1.s2/-/mask=none/regime=normal/seed=0/float32/cpu/train", checks=(), missing=None, flop=10)
SHARES = [(name, [PLAN]) for name in NAMES]
# How long a thread waits at the barrier for the second thread, in seconds.
BARRIER_TIMEOUT_S = 600.0


class FakeWorker:
    """Supervisor without a worker process, which records whether it was closed."""

    def __init__(self, name: str, parallel: int) -> None:
        self.name, self.parallel, self.closed = name, parallel, False

    def __enter__(self) -> "FakeWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Set ``closed``."""
        self.closed = True


@dataclass
class FakeSession:
    """Session that starts no processes and keeps a list of its fake workers."""

    started: list[FakeWorker] = field(default_factory=list)

    @property
    def workers(self) -> "FakeSession":
        """The pool, which is this object."""
        return self

    def get(self, names: list[str], kind: Any, *, parallel: int) -> FakeWorker:
        """Return a new fake worker, and add it to the list."""
        self.started.append(FakeWorker(names[0], parallel))
        return self.started[-1]


def test_two_at_a_time_and_no_more() -> None:
    """With parallel=2, two implementations run at the same time and never three; every result arrives once."""
    barrier, counting = Barrier(2), Lock()
    running: list[str] = []
    most = 0

    def job(name: str, plans: Any, worker: Any) -> Iterator[tuple[str, int]]:
        nonlocal most
        assert worker.name == name
        with counting:
            running.append(name)
            most = max(most, len(running))
        barrier.wait(BARRIER_TIMEOUT_S)
        yield name, 0
        yield name, 1
        with counting:
            running.remove(name)

    session = FakeSession()
    found = list(run_each(session, SHARES[:4], job, parallel=2))  # type: ignore[arg-type]
    assert sorted(found) == sorted((name, number) for name in NAMES[:4] for number in (0, 1))
    assert most == 2
    assert {worker.parallel for worker in session.started} == {2}
    assert all(worker.closed for worker in session.started)


def test_an_exception_of_a_job_reaches_the_caller_and_ends_the_others() -> None:
    """If the job of one implementation raises, the caller gets the exception, and all workers are closed."""
    session = FakeSession()

    def job(name: str, plans: Any, worker: Any) -> Iterator[str]:
        if name == "one":
            raise ValueError(name)
        # The jobs of all other implementations yield until their workers are closed.
        while not worker.closed:
            time.sleep(0.001)
            yield name

    with pytest.raises(ValueError, match="one"):
        list(run_each(session, SHARES, job, parallel=2))  # type: ignore[arg-type]
    assert all(worker.closed for worker in session.started)


def test_a_caller_that_stops_early_leaves_nothing_running() -> None:
    """If the caller closes the iterator, running workers are closed, and implementations that wait never start."""
    session = FakeSession()

    def job(name: str, plans: Any, worker: Any) -> Iterator[str]:
        while not worker.closed:
            time.sleep(0.001)
            yield name

    results = run_each(session, SHARES, job, parallel=2)  # type: ignore[arg-type]
    assert next(results) in NAMES[:2]
    results.close()  # type: ignore[attr-defined]
    assert len(session.started) <= 2
    assert all(worker.closed for worker in session.started)


@pytest.mark.parametrize(
    ("odd", "parallel"),
    [(PLAN, count_cores()), (replace(PLAN, flop=10**13), 1), (replace(PLAN, case=PLAN.case.replace("cpu", "cuda")), 1)],
    ids=["small", "large", "cuda"],
)
def test_only_small_cases_run_in_parallel(odd: Plan, parallel: int) -> None:
    """If one case is large, or is on a device, ``count_parallel_lanes`` returns 1; otherwise the number of cores."""
    assert count_parallel_lanes([PLAN, odd, PLAN]) == parallel


@pytest.mark.parametrize(
    ("sizes", "parallel", "divided"),
    [
        ([2 * FEWEST_CASES + 1], 2, [FEWEST_CASES + 1, FEWEST_CASES]),
        ([2 * FEWEST_CASES - 1], 2, [2 * FEWEST_CASES - 1]),
        ([2 * FEWEST_CASES], 1, [2 * FEWEST_CASES]),
        ([2 * FEWEST_CASES, 3], 2, [FEWEST_CASES, FEWEST_CASES, 3]),
        ([46, 48, 50, 52], 2, [46, 48, 50, 52]),
        ([46, 48, 50, 52], 3, [23, 23, 24, 24, 25, 25, 26, 26]),
        ([2 * FEWEST_CASES, 3], 5, [FEWEST_CASES, FEWEST_CASES, 3]),
        ([], 2, []),
    ],
)
def test_many_cases_are_divided_among_lanes(sizes: list[int], parallel: int, divided: list[int]) -> None:
    """Each case is in one share, and there are two shares for each lane if implementations and cases suffice."""
    shares = [(str(size), [replace(PLAN, flop=number) for number in range(size)]) for size in sizes]
    found = divide(shares, parallel)
    assert [len(plans) for _, plans in found] == divided
    for name, plans in shares:
        assert sorted(plan.flop for one, part in found if one == name for plan in part) == [p.flop for p in plans]


@pytest.mark.parametrize(("compiled", "sizes"), [(2, [17, 85]), (10, [10, 92])])
def test_one_worker_gets_all_compiled_cases(compiled: int, sizes: list[int]) -> None:
    """A compiled case counts as 35 others; if the compiled cases take longer than a fair part, they are the part."""
    assert COMPILATION == 35
    made = replace(PLAN, case=str(replace(CaseId.parse(PLAN.case), mode="aot")))
    plans = [made if number % 10 == 5 and number < 10 * compiled else PLAN for number in range(102)]
    parts = [part for _, part in divide([("any", plans)], 2)]
    assert [len(part) for part in parts] == sizes
    assert [plan for plan in parts[0] if plan is made] == [made] * compiled


def test_each_crash_is_reported_with_its_own_output(tmp_path: Path) -> None:
    """If two implementations print and crash at the same time, the reason of each quotes only its own output."""
    own = tmp_path / "own.py"
    own.write_text(
        "import os, sys, time\n"
        "def make_call(word):\n"
        "    def call(*inputs, **named):\n"
        "        for _ in range(100):\n"
        "            print(word, flush=True)\n"
        "            time.sleep(0.002)\n"
        "        os._exit(3)\n"
        "    return call\n"
        "LEFT, RIGHT = make_call('left'), make_call('right')\n"
    )
    with Session() as session:
        listed = session.ask_oracle(ListSuite(operator="multihead", level="quick"))
        plans = [replace(plan, checks=plan.checks[:1]) for plan in session.plan(listed[:1])]
        results = list(conform(session, [f"{own}:LEFT", f"{own}:RIGHT"], plans, run="r", progress=NoProgress()))
    crashes = {result.implementation.rpartition(":")[2]: result.findings[0].facts for result in results}
    assert crashes == {name: (Crashed(how="exit", code=3, text=name.lower()),) for name in ("LEFT", "RIGHT")}
