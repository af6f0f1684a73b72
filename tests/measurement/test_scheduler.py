"""Tests of the reader of the system's scheduler counters, on this system and on fake files of /proc/self/task."""

import os
import threading
import time
from pathlib import Path

import pytest

from attnbench.measurement import scheduler
from attnbench.measurement.scheduler import Reading, Scheduler


def write_tasks(folder: Path, **lines: str) -> Path:
    """Write a folder like /proc/self/task, and return it: ``t10="5 100 1"`` is the schedstat line of thread 10."""
    for name, line in lines.items():
        thread = folder / name.removeprefix("t")
        thread.mkdir(exist_ok=True)
        (thread / "schedstat").write_text(line + "\n")
    return folder


def test_waiting_is_summed_over_threads(tmp_path: Path) -> None:
    """The waited time is the sum of the second numbers of all threads.

    A thread that starts later is included after the next ``watch``.
    """
    counters = Scheduler(write_tasks(tmp_path, t10="5 100 1", t11="5 1000 1"))
    before = counters.read()
    write_tasks(tmp_path, t10="9 107 2", t11="9 1020 2", t12="1 300 1")
    assert counters.read().waited_ns_since(before) == 7 + 20
    counters.watch()
    assert counters.read().waited_ns_since(before) == 7 + 20 + 300


def test_the_waiting_of_a_thread_that_ended_is_not_subtracted() -> None:
    """Of two readings, a thread that only the earlier one contains adds nothing to the waited time between them."""
    before = Reading({10: b"1 100 1", 11: b"1 1000 1"}, 0)
    assert Reading({10: b"1 107 1"}, 0).waited_ns_since(before) == 7


@pytest.mark.skipif(not Scheduler().counts_waits, reason="this system does not say how long threads wait")
def test_threads_come_and_go() -> None:
    """After ``watch``, readings include a new thread; after the thread ended, they no longer do."""
    counters = Scheduler()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    own = thread.native_id
    counters.watch()
    during = counters.read().lines
    stop.set()
    thread.join()
    deadline = time.monotonic() + 300
    while own in (counters.read().lines or {}) and time.monotonic() < deadline:
        pass
    after = counters.read().lines
    assert during is not None
    assert after is not None
    assert during.keys() - after.keys() == {own}


def test_closed_descriptors_are_no_error(tmp_path: Path) -> None:
    """``read`` ignores descriptors of the reader that other code closed, even if one now belongs to another file."""
    counters = Scheduler(write_tasks(tmp_path, t10="5 100 1", t11="5 1000 1"))
    ten, eleven = (counters._files[thread] for thread in (10, 11))
    os.close(ten)
    other = os.open(write_tasks(tmp_path, t12="something else") / "12" / "schedstat", os.O_RDONLY)
    assert other == ten
    os.close(eleven)
    before = counters.read()
    assert counters.read().waited_ns_since(before) == 0
    assert os.read(other, 9) == b"something"
    os.close(other)


@pytest.mark.parametrize("line", ["0 0 0", "", "no numbers here", "1 2"])
def test_a_system_kernel_without_statistics_has_no_waits(tmp_path: Path, line: str) -> None:
    """If a schedstat line is all zeros or malformed, waits are None (unknown), not 0."""
    counters = Scheduler(write_tasks(tmp_path, t10=line))
    assert not counters.counts_waits
    reading = counters.read()
    assert reading.lines is None
    assert counters.read().waited_ns_since(reading) is None


def test_a_system_without_these_files_has_no_waits(tmp_path: Path) -> None:
    """Without /proc/self/task, which only Linux has, ``counts_waits`` is false."""
    assert not Scheduler(tmp_path / "nowhere").counts_waits


def test_a_system_without_getrusage_counts_no_switches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without ``getrusage``, the number of switches is None, and waits are counted."""
    monkeypatch.setattr(scheduler, "resource", None)
    counters = Scheduler(write_tasks(tmp_path, t10="5 100 1"))
    before = counters.read()
    assert not counters.counts_switches
    assert counters.read().switches_since(before) is None
    assert counters.read().waited_ns_since(before) == 0


def test_switches_are_the_difference_of_two_readings() -> None:
    """The number of switches is a difference of two readings; the readings need no counts of waits."""
    assert Reading(None, 12).switches_since(Reading(None, 9)) == 3


@pytest.mark.extended
@pytest.mark.skipif(not Scheduler().counts_waits, reason="this system does not say how long threads wait")
def test_threads_that_share_a_core_wait() -> None:
    """While four threads compute, a wait for a core is counted."""
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
        deadline = time.monotonic() + 300
        while not counters.read().waited_ns_since(before) and time.monotonic() < deadline:
            sum(range(1000))
        waited = counters.read().waited_ns_since(before)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert waited
    assert counters.read().switches is not None
