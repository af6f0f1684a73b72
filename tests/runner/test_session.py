"""Tests of a session's workers: an idle worker is used again where it serves as well as a new one."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from attnbench.processes.candidate_requests import Declared, Describe, Opinion, Outcome
from attnbench.records.environment import count_cores
from attnbench.records.outcome_facts import Interrupted
from attnbench.runner.session import PATIENT, Session, Supervisor

CASE = "multihead/B1.L2.S2.E4.H2/bias+batch_first/mask=none/regime=plain/seed=0/float32/cpu/inference"
NAME = "torch_mha"


@pytest.fixture
def session() -> Iterator[Session]:
    """A session without cache."""
    with Session(cache_folder=None) as opened:
        yield opened


def ask(worker: Supervisor) -> Opinion | Outcome:
    """Ask a worker about a case."""
    return worker.ask(Describe(implementation=NAME, case=CASE))


def test_a_kept_worker_is_used_again(session: Session) -> None:
    """The kept worker of an implementation is returned once; it has its declarations and answers requests."""
    worker = session.supervise(NAME)
    session.keep(NAME, worker)
    again = session.supervise(NAME, parallel=2)
    assert again is worker
    assert isinstance(ask(again), Opinion)
    assert isinstance(again.declared[NAME], Declared)
    alone = session.limits.compute_memory_limit_bytes()
    assert alone is None or cast("int", again.compute_memory_limit_bytes()) < 0.75 * alone
    other = session.supervise(NAME)
    assert other is not worker
    again.close()
    other.close()


@pytest.mark.parametrize("change", ["environment", "death", "end"])
def test_a_worker_that_is_not_as_good_as_new_is_closed(session: Session, change: str) -> None:
    """A worker with other environment variables, that died before, or whose process has ended is replaced."""
    worker = session.supervise(NAME, PATIENT | {"ATTNBENCH_TEST": "1"} if change == "environment" else PATIENT)
    if change == "death":
        worker.count_death("crashed")
    if change == "end":
        worker.renew()
    session.keep(NAME, worker)
    other = session.supervise(NAME)
    assert other is not worker
    assert isinstance(ask(other), Opinion)
    assert ask(worker) == Outcome(status="not_run", facts=(Interrupted(),))
    other.close()


def test_few_workers_are_kept(session: Session) -> None:
    """One worker per core is kept until the session ends; further ones are closed at once."""
    closed: list[int] = []
    kept: list[Any] = [
        SimpleNamespace(close=lambda number=number: closed.append(number)) for number in range(count_cores() + 1)
    ]
    for number, worker in enumerate(kept):
        session.keep(str(number), worker)
    assert closed == [count_cores()]
    session.__exit__(None, None, None)
    assert sorted(closed) == list(range(count_cores() + 1))
    session.__enter__()
