"""Tests of two calls that take turns: they stop at chosen lines, in every run alike."""

import threading

import pytest

from attnbench.checks import turns
from attnbench.checks.turns import Stoppable, count_lines, take_turns


class Recorder:
    """A call of three lines that records which of them ran, in a list that two calls share."""

    def __init__(self, name: str, ran: list[str]) -> None:
        self.name, self.ran = name, ran

    def work(self) -> str:
        """Run three lines."""
        self.ran.append(f"{self.name}1")
        self.ran.append(f"{self.name}2")
        return self.name


def make_stoppable(recorder: Recorder) -> Stoppable[str]:
    """Return the call of a recorder that can stop at its lines."""
    return lambda stoppable: stoppable(recorder.work)()


def test_a_call_stops_before_its_line_until_the_other_call_has_ended() -> None:
    """The second call runs between the first two lines of the first one."""
    ran: list[str] = []
    first, second = (make_stoppable(Recorder(name, ran)) for name in "ab")
    assert count_lines(first) == 3
    ran.clear()
    done = take_turns(first, second, line=1, until=None)
    assert ran == ["a1", "b1", "b2", "a2"]
    assert (done.first.result, done.second.result, done.blocked) == ("a", "b", False)


def test_calls_can_cross() -> None:
    """The second call begins within the first one, and ends after it."""
    ran: list[str] = []
    first, second = (make_stoppable(Recorder(name, ran)) for name in "ab")
    take_turns(first, second, line=1, until=1)
    assert ran == ["a1", "b1", "a2", "b2"]


def test_a_call_that_waits_for_a_lock_of_the_other_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls behind one lock end one after the other; calls that lock each other do not end."""
    monkeypatch.setattr(turns, "LIMIT_S", 0.5)
    one, other = threading.Lock(), threading.Lock()

    def lock(outer: threading.Lock, inner: threading.Lock) -> str:
        outer.acquire()
        inner.acquire()
        inner.release()
        outer.release()
        return "done"

    def use(outer: threading.Lock, inner: threading.Lock) -> Stoppable[str]:
        return lambda stoppable: stoppable(lock)(outer, inner)

    behind = take_turns(use(one, other), use(one, other), line=1, until=None)
    assert behind.blocked
    assert (behind.first.result, behind.second.result) == ("done", "done")
    locked = take_turns(use(one, other), use(other, one), line=1, until=None)
    assert {locked.first.ended, locked.second.ended} == {False}


def test_an_exception_is_returned() -> None:
    """What a call raises is in its outcome; counting raises it."""

    def fail() -> None:
        raise ValueError("wrong")

    done = take_turns(lambda stoppable: stoppable(fail)(), lambda _: None, line=0, until=None)
    assert str(done.first.error) == "wrong"
    assert done.second.ended
    with pytest.raises(ValueError, match="wrong"):
        count_lines(lambda stoppable: stoppable(fail)())
