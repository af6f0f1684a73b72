"""Tests of the scheduler's counters: on this system, and on files that stand in for others."""

import os
import threading
import time
from pathlib import Path

import pytest

from attnbench.analysis.clean_calls import is_clean
from attnbench.measurement import scheduler
from attnbench.measurement.scheduler import Reading, Scheduler


def tasks(folder: Path, **lines: str) -> Path:
    """Folder like /proc/self/task, with the line of each thread t<number>."""
    for name, line in lines.items():
        thread = folder / name.removeprefix("t")
        thread.mkdir(exist_ok=True)
        (thread / "schedstat").write_text(line + "\n")
    return folder


def test_waiting_is_added_up_over_threads(tmp_path: Path) -> None:
    """The second number of every thread counts, also of one that began, once it is watched."""
    counters = Scheduler(tasks(tmp_path, t10="5 100 1", t11="5 1000 1"))
    before = counters.read()
    tasks(tmp_path, t10="9 107 2", t11="9 1020 2", t12="1 300 1")
    assert counters.read().waited_ns_since(before) == 7 + 20
    counters.watch()
    assert counters.read().waited_ns_since(before) == 7 + 20 + 300


def test_a_thread_that_ended_takes_nothing_from_the_others() -> None:
    """What it had waited is not subtracted."""
    before = Reading({10: b"1 100 1", 11: b"1 1000 1"}, 0)
    assert Reading({10: b"1 107 1"}, 0).waited_ns_since(before) == 7


@pytest.mark.skipif(not Scheduler().counts_waits, reason="this system does not say how long threads wait")
def test_threads_come_and_go() -> None:
    """One that began is read, and one that ended leaves no file open."""
    counters = Scheduler()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    own = thread.native_id
    counters.watch()
    during = counters.read().lines
    stop.set()
    thread.join()
    deadline = time.monotonic() + 20
    while own in (counters.read().lines or {}) and time.monotonic() < deadline:
        pass
    after = counters.read().lines
    assert during is not None
    assert after is not None
    assert during.keys() - after.keys() == {own}


def test_files_that_somebody_closed_are_left_alone(tmp_path: Path) -> None:
    """An implementation may close every descriptor, or have its own file under one of ours; neither is an error."""
    counters = Scheduler(tasks(tmp_path, t10="5 100 1", t11="5 1000 1"))
    ten, eleven = (counters._files[thread] for thread in (10, 11))
    os.close(ten)
    other = os.open(tasks(tmp_path, t12="something else") / "12" / "schedstat", os.O_RDONLY)
    assert other == ten
    os.close(eleven)
    before = counters.read()
    assert counters.read().waited_ns_since(before) == 0
    assert os.read(other, 9) == b"something"
    os.close(other)


@pytest.mark.parametrize("line", ["0 0 0", "", "no numbers here", "1 2"])
def test_a_kernel_that_keeps_no_statistics_is_said_to_have_none(tmp_path: Path, line: str) -> None:
    """Zeros that nobody counted are not taken for calls that never waited."""
    counters = Scheduler(tasks(tmp_path, t10=line))
    assert not counters.counts_waits
    reading = counters.read()
    assert reading.lines is None
    assert counters.read().waited_ns_since(reading) is None


def test_a_system_without_these_files_has_none(tmp_path: Path) -> None:
    """Anywhere but on Linux."""
    assert not Scheduler(tmp_path / "nowhere").counts_waits


def test_a_system_without_getrusage_counts_no_switches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The rest works."""
    monkeypatch.setattr(scheduler, "resource", None)
    counters = Scheduler(tasks(tmp_path, t10="5 100 1"))
    before = counters.read()
    assert not counters.counts_switches
    assert counters.read().switches_since(before) is None
    assert counters.read().waited_ns_since(before) == 0


def test_switches_are_the_difference() -> None:
    """Of two readings."""
    assert Reading(None, 12).switches_since(Reading(None, 9)) == 3


@pytest.mark.skipif(not Scheduler().counts_waits, reason="this system does not say how long threads wait")
def test_threads_that_share_a_core_wait() -> None:
    """Two threads that want the interpreter all the time make the process wait or be switched sooner or later."""
    counters = Scheduler()
    before = counters.read()
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=burn) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 20
        while not counters.read().waited_ns_since(before) and time.monotonic() < deadline:
            sum(range(1000))
        waited = counters.read().waited_ns_since(before)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert waited
    assert counters.read().switches is not None


@pytest.mark.parametrize(
    ("waited_ns", "switches", "expected"),
    [
        (0, 5, True),
        (5_000, 0, True),
        (5_001, 0, False),
        (None, 0, True),
        (None, 1, False),
        (None, None, True),
    ],
)
def test_a_clean_call_waited_half_a_percent_at_the_most(
    waited_ns: int | None, switches: int | None, expected: bool
) -> None:
    """By the finer counter, where there is one; else by switches, else it is taken for clean."""
    assert is_clean(1_000_000, waited_ns, switches) is expected
