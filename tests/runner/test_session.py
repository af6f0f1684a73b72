"""Tests of a session's workers: an idle worker is used again where it serves as well as a new one."""

from collections.abc import Iterator
from typing import Any, NoReturn, cast

import pytest

from attnbench.plugins.registry import PluginError
from attnbench.processes.candidate_requests import Declaration, Declared, Describe, Outcome
from attnbench.processes.rpc import Child, ChildDied
from attnbench.records.environment import count_cores
from attnbench.records.outcome_facts import Crashed, Interrupted
from attnbench.runner import candidate_pool
from attnbench.runner.candidate_pool import CHECKING, PATIENT, Supervisor, WorkerKind
from attnbench.runner.session import Session

CASE = "multihead/B1.L2.S2.E4.H2/bias+batch_first/mask=none/regime=plain/seed=0/float32/cpu/inference"
NAME = "torch_mha"


@pytest.fixture
def session() -> Iterator[Session]:
    """A session without cache."""
    with Session(cache_folder=None) as opened:
        yield opened


def ask(worker: Supervisor) -> Declaration | Outcome:
    """Ask a worker about a case."""
    return worker.ask(Describe(implementation=NAME, case=CASE))


def test_a_kept_worker_is_used_again(session: Session) -> None:
    """The kept worker of an implementation is returned once; it has its declarations and answers requests."""
    worker = session.workers.get([NAME])
    session.workers.keep(worker)
    again = session.workers.get([NAME], parallel=2)
    assert again is worker
    assert isinstance(ask(again), Declaration)
    assert isinstance(again.declared[NAME], Declared)
    alone = session.limits.compute_memory_limit_bytes()
    assert alone is None or cast("int", again.compute_memory_limit_bytes()) < 0.75 * alone
    other = session.workers.get([NAME])
    assert other is not worker
    again.close()
    other.close()


@pytest.mark.parametrize("change", ["environment", "death", "end"])
def test_a_worker_that_is_not_as_good_as_new_is_closed(session: Session, change: str) -> None:
    """A worker with other environment variables, that died before, or whose process has ended is replaced."""
    other_kind = WorkerKind(environment=PATIENT | {"ATTNBENCH_TEST": "1"})
    worker = session.workers.get([NAME], other_kind if change == "environment" else CHECKING)
    if change == "death":
        worker.deaths.add(CASE, ["forward_parity"], Crashed(how="closed"))
    if change == "end":
        worker.renew()
    session.workers.keep(worker)
    other = session.workers.get([NAME])
    assert other is not worker
    assert isinstance(ask(other), Declaration)
    assert ask(worker) == Outcome(status="not_run", facts=(Interrupted(),))
    other.close()


def test_few_workers_are_kept(session: Session) -> None:
    """One worker per core is kept until the session ends; further ones are closed at once."""
    closed: list[int] = []

    class FakeWorker:
        def __init__(self, number: int) -> None:
            self.number, self.implementations = number, (str(number),)
            session.workers.add(cast("Any", self))

        def close(self) -> None:
            closed.append(self.number)
            session.workers.remove(cast("Any", self))

    for number in range(count_cores() + 1):
        session.workers.keep(cast("Any", FakeWorker(number)))
    assert closed == [count_cores()]
    session.__exit__(None, None, None)
    assert sorted(closed) == list(range(count_cores() + 1))
    session.__enter__()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, ChildDied(Crashed(how="closed"))])
def test_a_worker_that_cannot_start_leaves_no_process(
    session: Session, monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    """Whatever ends the start of a worker, its process ends, and the pool forgets it."""
    started: list[Child] = []

    def fail(child: Child, *_: object) -> NoReturn:
        started.append(child)
        raise error

    monkeypatch.setattr(candidate_pool, "_load", fail)
    with pytest.raises(PluginError if isinstance(error, ChildDied) else error):
        session.workers.get([NAME])
    (child,) = started
    assert child._ended
    assert not session.workers._running


def test_workers_that_nobody_closes_end_with_the_session() -> None:
    """A worker that its user lost, for example by an interrupt, ends with the session."""
    with Session(cache_folder=None) as opened:
        worker = opened.workers.get([NAME])
    assert ask(worker) == Outcome(status="not_run", facts=(Interrupted(),))


def test_a_worker_that_is_closed_while_it_starts_again_has_no_process(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one thread closes a worker whose process another thread starts, that process ends, too."""
    worker = session.workers.get([NAME])
    worker.renew()
    load = candidate_pool._load

    def close_meanwhile(child: Child, name: str, timeout_s: float) -> Declared:
        declared = load(child, name, timeout_s)
        monkeypatch.setattr(worker, "_end", lambda: None)  # as if the other thread found no process yet
        worker.close()
        monkeypatch.undo()
        return declared

    monkeypatch.setattr(candidate_pool, "_load", close_meanwhile)
    assert ask(worker) == Outcome(status="not_run", facts=(Interrupted(),))
    assert worker._child is None
